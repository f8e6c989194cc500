"""1-bit LAMB: as 1-bit Adam for LAMB, whose trust ratios follow the gradients after the variance is frozen.

Idea: As `one-bit-adam`, around `quorate.optim.LAMB`. The trust ratio of a layer cannot be formed from a momentum in one
bit and a frozen variance, whose quotient has another norm. So it is the product of two numbers, c and r. The first is
the running mean (factor 0.9) of the ratios in the warm-up. The second follows the gradients: the root of their mean
square just after the freeze over that of now. It stays between 0.5 and 4, and changes by at most 10 % in a step.

Cost: As `one-bit-adam`, and two numbers for each tensor in each step. In the warm-up one more pass over the parameters
and their moments, for the ratios.

When it loses: Where `one-bit-adam` does. With small batches, for which LAMB is not made. Where a layer's ratio still
moves at the freeze: c then is that of another time, and r corrects only what gradients show.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; what the dead worker's memories held is lost
- pause: goes on; all wait until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it in every step
- corrupt gradient: goes on; one with NaN or infinity is reported with its worker, left out, or ends the training
  (`on_nonfinite`); others are averaged and so reach every worker
- resize: goes on; memories are divided among the new workers, and their sum is preserved
- resume: goes on; memories of all workers are in checkpoints

Paper: Li et al., "1-bit LAMB: communication efficient large-scale large-batch training with LAMB's convergence speed",
HiPC 2022, Algorithm 1, with its bounds. Li et al. form r of a second variance, which takes in gradients that are
reconstructed of two momenta, by the largest quotient in a layer. There the noise of codes counts as gradient, and one
number decides. Here r is formed of the workers' own gradients, whose squares are sent, by their mean in a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from quorate.core.device_copies import values_of
from quorate.core.means import Mean
from quorate.core.moments import AgreedMomentum
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.momenta import FreezeSettings, Momenta, begin_warm_up, blank_with, mean_of_units

_FACTOR = 0.9
"""beta3: the factor of the old value in the running mean of ratios."""
_FIRST = 10
"""The number of steps after the freeze whose gradients are compared with later ones."""
_LOW, _HIGH, _CHANGE = 0.5, 4.0, 0.1


@dataclass(kw_only=True)
class State(Momenta):
    """The momentum, and the trust ratio of each tensor."""

    ratios: list[float] = kept("same", default_factory=list, is_adapted=True)
    """c: the running mean of the ratios in the warm-up."""
    squares: list[float] = kept("same", default_factory=list, is_adapted=True)
    """The running mean of the squared norm of the workers' own gradients since the freeze."""
    first: list[float] = kept("same", default_factory=list, is_adapted=True)
    """The same just after the freeze."""
    factors: list[float] = kept("same", default_factory=list, is_adapted=True)
    """r."""
    count: int = kept("same", default=0)
    """The number of means since the freeze."""

    def note_ratios(self, ratios: Sequence[float]) -> None:
        """Take the ratios of a step of the warm-up into their running mean."""
        before = self.ratios or list(ratios)
        self.ratios = [_FACTOR * old + (1 - _FACTOR) * new for old, new in zip(before, ratios, strict=True)]

    def note_mean(self, numbers: Sequence[float], memory: int) -> None:
        """Take in the mean of the workers' squares and ratios, and let the factors follow."""
        squares, ratios = numbers[: len(self.units)], numbers[len(self.units) :]
        self.factors = self.factors or [1.0] * len(squares)
        if not all(map(math.isfinite, squares)):
            return
        if not self.count:
            self.ratios = list(ratios)  # a worker that has paused has missed some steps of the warm-up
        self.count += 1
        share = 1 / min(self.count, memory)
        before = self.squares or list(squares)
        self.squares = [old + share * (new - old) for old, new in zip(before, squares, strict=True)]
        if self.count <= _FIRST:
            self.first = self.squares
            return
        for place, (first, now, r) in enumerate(zip(self.first, self.squares, self.factors, strict=True)):
            ratio = math.sqrt(first / now) if first and now else r
            ratio = min(max(ratio, (1 - _CHANGE) * r), (1 + _CHANGE) * r)
            self.factors[place] = min(max(ratio, _LOW), _HIGH)


@register("one-bit-lamb")
@dataclass(frozen=True, kw_only=True)
class OneBitLAMB(FreezeSettings):
    """After a warm-up, LAMB's variance is frozen; momenta travel in one bit, and trust ratios follow the gradients."""

    optimizers: ClassVar[Sequence[str]] = ("quorate.optim.lamb.LAMB",)

    def start(self, worker: Worker) -> State:
        begin_warm_up(worker, self.warm_up)
        return State()

    def backward(self, worker: Worker) -> None:
        if not worker.state.is_frozen:
            worker.gradient = worker.means.of_gradient().wait()

    def step(self, worker: Worker) -> None:
        state, moments = worker.state, worker.replica.moments
        if state.is_frozen:
            gradient = worker.gradient
            squares = values_of([torch.linalg.vector_norm(x).float().square() for x in gradient.segments()])
            numbers = [*squares, *state.ratios]
            result = state.mean_of(worker, moments.momentum_after(gradient), worker.weight, numbers)
            self.apply(worker, result)
            ratios = [c * r for c, r in zip(state.ratios, state.factors, strict=True)]
            momentum = state.momentum_in(worker, result.mean)
            worker.update(momentum=AgreedMomentum(vector=momentum, ratios=ratios))  # x <- x - lr c r u
            return
        worker.update()
        state.note_ratios(moments.trust_ratios())
        if state.is_over(worker, self.warm_up):
            self.apply(worker, mean_of_units(worker))

    def contribution(self, worker: Worker) -> tuple[Flat, float] | None:
        return (blank_with(worker, worker.state.units * 2), 0.0) if worker.state.is_frozen else None

    def apply(self, worker: Worker, result: Mean) -> None:
        if worker.state.is_frozen:
            worker.state.note_mean(worker.replica.numbers_of(result.mean), worker.replica.moments.memory)
        else:
            worker.state.freeze(worker, result.mean)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.go_on(worker, worker.gradient)
