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
    """Compute the forward and backward passes of one batch; call `optimizer.step()` afterwards.

    It replaces `value = loss(model(inputs), targets)` and `value.backward()`. With a model in stages
    (`quorate.parallelize` on a mesh with `stages`) each worker computes the passes of its stages in the order of the
    model's `schedule`. The last stage alone computes the loss, so outputs, such as logits, are not sent. A model
    without stages is called with the whole batch. Under "pipedream-2bw" the loss is that of this batch, and the
    gradient that of the batch before: the first call gives none.

    Args:
        model: The result of `quorate.parallelize`, or any module.
        inputs: The input of the model: a tensor, a tuple of arguments, or a dictionary of keyword arguments, with
            examples in dimension 0.
        targets: The second argument of `loss`: a tensor, or several in tuples, lists and dictionaries, divided as the
            inputs are; None: `loss` is called with the output alone.
        loss: Returns one number, the mean over the examples that it is called with; micro-batches count by their
            examples. None: the model returns it, or has it as `loss` in its output.
        scaler: Scales the loss before the backward pass, and is used for the step as usual.

    Returns:
        The mean loss on every worker, a tensor of one number without a graph.

    Raises:
        ConfigurationError: `quorate.join()` was not called, the loss is not one number, or targets have another length
            than the inputs. Also a `scaler` under the schedule "pipedream-2bw", whose gradients are of another scale.
        Mismatch: A worker of the pipeline makes another call.

    Cost: in a pipeline of p workers and m micro-batches a worker is idle for a share of (p - 1) / (m + p - 1) of the
    step. This holds under "gpipe" and "1f1b" (Huang et al. 2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv
    2104.04473).

    Example:
        >>> loss = quorate.forward_backward(model, inputs, targets, torch.nn.functional.cross_entropy)
        >>> optimizer.step()
    """
    place = current.here()
    if not isinstance(model, Module):
        raise ConfigurationError(f"forward_backward takes a torch.nn.Module, not {type(model).__name__}")
    args, kwargs = _called_with(inputs)
    pipeline = pipeline_of(model, place)
    if pipeline is not None and pipeline.layout.is_delayed and scaler is not None and scaler.is_enabled():
        raise ConfigurationError(
            'a GradScaler cannot be combined with schedule="pipedream-2bw", whose gradients are of the batch before, '
            "and of its scale; use bfloat16"
        )
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
