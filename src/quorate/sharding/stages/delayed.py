"""A pipeline whose gradients are one batch old, so that no worker waits for a batch to pass through all stages.

In each step the forward passes of a batch run beside the backward passes of the batch before. With u the optimizer's
step and g[t] the gradient of batch t at the parameters of its forward passes, parameters move by

    x[t + 1] = x[t] - u(g[t - 1](x[t - 1]))

A batch keeps a copy of the parameters from its forward to its backward passes, so that both are of the same numbers.
The first step has no gradient. The gradient of the last batch is never applied.

Source: Narayanan et al. 2021, PipeDream-2BW (arXiv 2006.09503, section 3.1). There a stage holds two versions of its
parameters, and the passes of as many micro-batches as stages follow. Here a step ends for all stages, with the loss of
its own batch: a stage holds the activations of a whole batch, and, beside its parameters, two copies of them. It idles
a third as long as under 1F1B, and the first and the last stage hardly at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.between import Run
from quorate.sharding.stages.orders import BACKWARD, FORWARD
from quorate.sharding.stages.pipeline import Losses, Pipeline

GRADIENT = "delayed_gradient"
"""The name, in the optimizer's state of a parameter in a checkpoint, of the gradient of the batch before."""
_SECONDS = {FORWARD: 1.0, BACKWARD: 2.0}
"""A backward pass takes about twice the time of a forward pass."""


class Pass(NamedTuple):
    """A forward pass of this batch, or a backward pass of the one before."""

    kind: str
    microbatch: int


@cache
def passes(workers: int, forwards: int, backwards: int) -> Sequence[Sequence[Pass]]:
    """Return the passes of each worker in one step, in their order: always the one that can begin first.

    Micro-batches go forward from stage to stage, and those of the batch before go backward. Where both are ready, the
    backward pass is first, as it frees activations.
    """
    ends: dict[tuple[str, int, int], float] = {}
    counts = {FORWARD: forwards, BACKWARD: backwards}
    done = [dict.fromkeys(counts, 0) for _ in range(workers)]
    free = [0.0] * workers
    order: list[list[Pass]] = [[] for _ in range(workers)]

    def begins(worker: int, kind: str) -> float:
        number, before = done[worker][kind], worker + (1 if kind == BACKWARD else -1)
        if number == counts[kind]:
            return math.inf
        is_first = not 0 <= before < workers
        return max(free[worker], 0.0 if is_first else ends.get((kind, before, number), math.inf))

    for _ in range(workers * (forwards + backwards)):
        choices = [(begins(worker, kind), kind != BACKWARD, worker) for worker in range(workers) for kind in counts]
        begin, is_forward, worker = min(choices)
        kind = FORWARD if is_forward else BACKWARD
        number = done[worker][kind]
        order[worker].append(Pass(kind, number))
        ends[kind, worker, number] = free[worker] = begin + _SECONDS[kind]
        done[worker][kind] += 1
    return order


class ParametersOfBatch:
    """The trained parameters of a worker's stage as they are when a batch goes forward."""

    def __init__(self, model: Module, retired: ParametersOfBatch | None) -> None:
        """The memory of `retired`, whose batch has gone backward, is used again."""
        memory: Mapping[Parameter, Parameter] = {} if retired is None else retired.copies
        trained = [p for p in model.parameters() if p.requires_grad]
        self.copies: dict[Parameter, Parameter] = {
            p: copy if (copy := memory.get(p)) is not None and _are_alike(copy, p) else _like(p) for p in trained
        }
        with torch.no_grad():
            torch._foreach_copy_([*self.copies.values()], [*trained])
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
        """Places of parameters in modules, each with the parameter, or a list of them, and its copy."""
        for module in model.modules():
            held: dict[str, Any] = module._parameters
            self._replaced += [(held, key, p, self.copies[p]) for key, p in held.items() if p in self.copies]
            flat = module.__dict__.get("_flat_weights")
            if isinstance(flat, list):  # a recurrent module keeps a list of its own
                copies = [self.copies.get(p, p) for p in flat]
                self._replaced.append((module.__dict__, "_flat_weights", flat, copies))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the modules calculate with these numbers."""
        for holder, key, _, copy in self._replaced:
            holder[key] = copy
        try:
            yield
        finally:
            for holder, key, p, _ in self._replaced:
                holder[key] = p

    def gradients(self) -> dict[Parameter, Tensor]:
        """Return the gradients of the batch by parameter, and forget them."""
        gradients = {p: copy.grad for p, copy in self.copies.items() if copy.grad is not None}
        for copy in self.copies.values():
            copy.grad = None
        return gradients


def _like(p: Parameter) -> Parameter:
    return Parameter(torch.empty_like(p))


def _are_alike(copy: Tensor, p: Tensor) -> bool:
    return (copy.shape, copy.dtype, copy.device) == (p.shape, p.dtype, p.device)


@dataclass(frozen=True)
class _UnderWay:
    """A batch that has gone forward, and not yet backward."""

    run: Run
    parameters: ParametersOfBatch


class DelayedPipeline(Pipeline):
    """One worker's part of a model in stages, whose steps have the gradients of the batch before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._under_way: _UnderWay | None = None
        self._retired: ParametersOfBatch | None = None
        self._gradients: dict[Parameter, Tensor] = {}
        """The gradients of the batch before, where it has gone backward for a checkpoint."""
        self.traffic.syncs.append(_refuse_accumulation)

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any], losses: Losses) -> Tensor:
        run = self._run("a step", args, kwargs, learns=True)
        before, self._under_way = self._under_way, None
        retired, self._retired = self._retired, None
        batch = _UnderWay(run, ParametersOfBatch(self.model, retired))
        order = passes(self.layout.workers, len(run.batches), 0 if before is None else len(before.run.batches))
        stage = self.stages[0]
        with self.traffic.pausing():
            for kind, number in order[self.wire.rank]:
                if kind == BACKWARD:
                    assert before is not None
                    with before.parameters.in_use():
                        self._backward_from_losses(before.run, stage, number)
                    continue
                with batch.parameters.in_use():
                    self._forward(run, stage, number)
                    if self.has_last:
                        self._end_forward(run, number, losses)
            self._between.pause(run)
            if before is not None:
                self._retire(before)
        self._give_gradients()
        self._under_way = batch
        return self._sum_of(losses)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output, on every worker. Raises `ConfigurationError` in training."""
        if self._losses is None and self.model.training and torch.is_grad_enabled():
            raise ConfigurationError(
                'schedule="pipedream-2bw" trains by quorate.forward_backward, which has the gradients of the batch '
                "before; call the model under torch.no_grad(), or choose another schedule"
            )
        return super().call(*args, **kwargs)

    @contextmanager
    def gradients_in(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside, the state of `optimizer` has the gradients of the batch before, for a checkpoint.

        All workers of the pipeline call it together. The next step takes these gradients, and none is lost.
        """
        if (before := self._under_way) is not None:
            self._under_way = None
            self.meet("a checkpoint")
            with before.parameters.in_use(), self.traffic.pausing():
                for number in range(len(before.run.batches)):
                    self._backward_from_losses(before.run, self.stages[0], number)
                self._retire(before)
        with_gradient = [p for group in optimizer.param_groups for p in group["params"] if p in self._gradients]
        for p in with_gradient:
            optimizer.state[p][GRADIENT] = self._gradients[p]
        try:
            yield
        finally:
            for p in with_gradient:
                kept = optimizer.state[p]
                del kept[GRADIENT]
                if not kept:  # an optimizer takes any state for that of a step
                    del optimizer.state[p]

    def go_on_with(self, gradients: Mapping[Parameter, Tensor]) -> None:
        """Go on from a checkpoint with its gradients of the batch before, in place of those of this run."""
        self._under_way = None
        self._gradients |= {p: gradient.to(p.device) for p, gradient in gradients.items()}

    def _retire(self, batch: _UnderWay) -> None:
        self._between.pause(batch.run)
        self._gradients, self._retired = batch.parameters.gradients(), batch.parameters

    def _give_gradients(self) -> None:
        """Add the gradients of the batch before to `.grad`."""
        gradients, self._gradients = self._gradients, {}
        if not gradients:
            return
        self.ending.backward_begins()
        for p, gradient in gradients.items():
            hooks: Any = p._backward_hooks or {}
            for hook in list(hooks.values()):  # autograd has called those of the copies, which have none
                changed = hook(gradient)
                gradient = gradient if changed is None else changed
            p.grad = gradient if p.grad is None else p.grad + gradient
        self.ending.ended()


def without_gradients(state: Mapping[int, Any]) -> tuple[dict[int, Any], dict[int, Tensor]]:
    """Return the optimizer's state in a checkpoint without gradients of the batch before, and these by parameter."""
    gradients = {
        number: kept[GRADIENT] for number, kept in state.items() if isinstance(kept, dict) and GRADIENT in kept
    }
    others = {
        number: {key: x for key, x in kept.items() if key != GRADIENT} if number in gradients else kept
        for number, kept in state.items()
    }
    return {number: kept for number, kept in others.items() if kept or number not in gradients}, gradients


def _refuse_accumulation(is_reduced: bool) -> None:
    if not is_reduced:
        raise ConfigurationError(
            'optimizer.accumulate() cannot be combined with schedule="pipedream-2bw", whose passes end in the next '
            "step; give parallelize more micro-batches"
        )
