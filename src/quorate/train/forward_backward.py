"""One step's forward and backward passes, micro-batch by micro-batch, in the order of a pipeline's schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module

from quorate.core.errors import ConfigurationError
from quorate.observe.backward import observe_backward, observed_backward
from quorate.sharding.parallelize import pipeline_of
from quorate.sharding.stages.batches import MicroBatch, micro_batches, parts_of
from quorate.wire import current


def forward_backward(
    model: Module,
    inputs: Any,
    targets: Any = None,
    loss: Callable[..., Tensor] | None = None,
    *,
    scaler: GradScaler | None = None,
) -> Tensor:
    """The forward and backward passes of one batch; returns the mean loss (a number, without a graph) on every worker.

    It stands for `value = loss(model(inputs), targets)` and `value.backward()`, and is followed by the optimizer's
    step. With a model in stages (`quorate.parallelize` on a mesh with `stages`) each worker makes the passes of its
    stages in the order of the model's `schedule`, and the loss is formed by the last stage alone, so that outputs, such
    as logits, are not sent. A model that is not in stages is called with the whole batch.

    `inputs` is what the model is called with: a tensor, a tuple, or a dictionary of keyword arguments. `targets` is
    given to `loss` as its second argument (a tensor, or several in a tuple, list or dictionary), cut as the inputs are;
    None: `loss` gets the output alone. `loss` gives the mean over the examples that it is given; micro-batches
    count by their examples. Without `loss` the model gives it (or has it as `loss` in what it gives). `scaler` scales
    the loss, and is used for the step as ever.

    Cost: in a pipeline of p workers and m micro-batches a worker is idle for a share of (p - 1) / (m + p - 1) of the
    step under "gpipe" and "1f1b" (Huang et al. 2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473).

    Raises `ConfigurationError` before `quorate.join()`, for a loss that is not one number, and for targets of another
    length than the inputs.
    """
    place = current.here()
    if not isinstance(model, Module):
        raise ConfigurationError(f"forward_backward takes a torch.nn.Module, not {type(model).__name__}")
    args, kwargs = _called_with(inputs)
    pipeline = pipeline_of(model, place)
    batches = [MicroBatch(args, kwargs, 1, 1.0)]
    if pipeline is not None:
        batches = micro_batches(args, kwargs, pipeline.layout.microbatches)
    parts = [targets] if pipeline is None or targets is None else parts_of(targets, batches)

    def value_of(output: Any, number: int) -> Tensor:
        mean_loss: object = (
            _loss(output) if loss is None else loss(output) if targets is None else loss(output, parts[number])
        )
        if not isinstance(mean_loss, Tensor) or mean_loss.numel() != 1:
            raise ConfigurationError("loss= must return one number, the mean over the given examples")
        return mean_loss

    with torch.enable_grad():
        if pipeline is None:
            mean_loss = value_of(model(*args, **kwargs), 0)
            (mean_loss if scaler is None else scaler.scale(mean_loss)).backward()
            return mean_loss.detach()
        scale: Callable[[Tensor], Tensor] = (lambda x: x) if scaler is None else scaler.scale
        with observed_backward(observe_backward(place)) as forward_ended:
            mean_loss = pipeline.step(args, kwargs, value_of, scale)
            scale(mean_loss)  # a scaler that has scaled nothing refuses to unscale, and the loss is the last stage's
            forward_ended(mean_loss)
        return mean_loss


def _called_with(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _loss(output: Any) -> Any:
    return output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
