"""0/1 Adam: the variance is formed in ever fewer steps, then frozen; momenta travel in one bit, in ever fewer steps.

Idea: As `one-bit-adam`, without a dense warm-up. The variance takes in the squares of the mean gradient only in some
steps, whose distance doubles after each 16 of them; these are dense. In the others workers exchange momenta in one bit
per number. After the freeze workers also take local steps. Each adds its own gradients to its momentum m_i, moves by
it, and adds its learning rate times m_i to u_i. At a mean all take ū, the mean of the codes of all u_i. They return to
the point of the last mean, and make one step from there. Its rate is the sum of the rates since then, and its momentum
ū over that sum. The distance of means doubles every `double_every` steps, up to `longest`.

Cost: In a step with squares 2 (P - 1) / P d numbers, in one with a mean as many bits, in others nothing. An evaluation
and the end have a mean. Nothing overlaps with the backward pass. The memory is that of `one-bit-adam`, and two vectors
for the common point and u_i.

When it loses: Where `one-bit-adam` does. With a rate that is high after the freeze, because replicas drift apart
between means. In short trainings: the distance of means is 1 until `double_every` steps after the freeze.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; the dead worker's steps since the last mean
  are lost, and what its memories held
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean
- corrupt gradient: goes on; one with NaN or infinity is reported with its worker at the next mean, or ends the training
  (`on_nonfinite`). With "skip" all steps since the last mean are left out
- resize: goes on; from the mean of the old replicas. u_i and memories are divided among the new workers, so that the
  mean is preserved
- resume: goes on; every worker with its own replica, u_i and memories

Paper: Lu, Li, Zhang, De Sa and He, "Maximizing communication efficiency for large-scale training via 0/1 Adam", ICLR
2023, Algorithm 1, with the distances of section 6 (kappa = 16). Steps with squares also send u_i by one bit there; here
their mean gradient gives the momentum exactly. The corrections of Adam for its beginning with 0, decoupled decay, and
units by tensor are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.moments import AgreedMomentum
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.momenta import AccumulatedMomenta, FreezeSettings, begin_squares, numbered


@register("zero-one-adam")
@dataclass(frozen=True, kw_only=True)
class ZeroOneAdam(FreezeSettings):
    """Adam's variance is formed in ever fewer steps, then frozen; momenta travel in one bit, in ever fewer steps."""

    replicas = "meet"
    _sparse_gradients = "refused"
    optimizers: ClassVar[Sequence[str]] = ("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")

    doubles_after: int = 16
    """kappa: the number of steps with squares after which their distance doubles."""
    double_every: int = 32768
    """The number of steps after the freeze after which the distance of means doubles."""
    longest: int = 16
    """H: the longest distance of means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("doubles_after", "double_every", "longest"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be a number of steps from 1 on")

    def start(self, worker: Worker) -> AccumulatedMomenta:
        return begin_squares(worker)

    def step(self, worker: Worker) -> None:
        s, moments = worker.state, worker.replica.moments
        if not s.is_frozen:
            gradient = worker.gradient
            self._meet(worker, gradient if s.next == "squares" else s.scale_(moments.momentum_after(gradient)))
            if s.next == "units":
                self._meet(worker, moments.units(s.squares))
            return
        m = moments.momentum_after(worker.gradient)  # line 3
        s.move(worker, m)  # line 5
        if s.local < s.distance(self.double_every, self.longest):
            worker.update(momentum=AgreedMomentum(vector=m))  # line 4
            s.shown = worker.parameters
        else:
            x, weight = self.contribution(worker, uncounted=1)
            self._return(worker, worker.means.of(x, weight=weight, looks=True).wait())

    def _meet(self, worker: Worker, x: Flat) -> None:
        x = numbered(worker, worker.replica.learning_rates, x)
        self.apply(worker, Mean(mean=worker.means.of(x, weight=worker.weight, looks=True).wait()))

    def contribution(self, worker: Worker, uncounted: int = 0) -> tuple[Flat, float]:
        s, rates = worker.state, worker.replica.learning_rates
        if not s.local:
            return numbered(worker, rates), 0.0
        momentum = worker.replica.by_group(s.moved, [1 / rate for rate in s.rates])
        return numbered(worker, s.rates, s.scale_(momentum), uncounted), s.weight / s.local

    def apply(self, worker: Worker, result: Mean) -> None:
        s = worker.state
        if s.is_frozen:
            self._return(worker, result.mean)
        elif s.next == "units":
            s.take_units(worker.replica.parameters_of(result.mean))
            s.turn(worker, "momenta")
            if self._is_over(worker):
                s.begin_local_steps(worker)
        else:
            self._update(worker, result.mean)
            s.steps += 1
            is_over = self._is_over(worker)
            has_squares = s.steps + 1 >= s.due and not is_over
            s.turn(worker, "squares" if has_squares else "momenta" if s.units and not is_over else "units")

    def _update(self, worker: Worker, mean: Flat) -> None:
        s, replica = worker.state, worker.replica
        if s.next == "momenta":
            worker.update(momentum=AgreedMomentum(vector=s.momentum_in(worker, mean), squares=s.squares))
            return
        gradient = replica.parameters_of(mean)
        s.count_squares(self.doubles_after)
        if s.squares == s.steps + 1:  # all steps so far have had squares, as the optimizer's own have
            worker.update(gradient)
        else:  # line 17
            m = replica.moments.momentum_after(gradient)
            worker.update(momentum=AgreedMomentum(vector=m, squares=s.squares, gradient=gradient))

    def _return(self, worker: Worker, mean: Flat) -> None:
        s = worker.state
        s.steps += s.distance(self.double_every, self.longest)
        s.go_back(worker)
        m, (*rates, steps) = s.momentum_in(worker, mean), worker.replica.numbers_of(mean)
        counted = round(steps - worker.replica.moments.steps) if any(rates) else 0
        worker.update(momentum=AgreedMomentum(vector=m, rates=rates, counted=counted))  # lines 8 and 9
        s.restart(worker)  # lines 10 and 11

    def _is_over(self, worker: Worker) -> bool:
        s = worker.state
        if self.warm_up is not None:
            return bool(s.steps >= self.warm_up)
        return worker.means.vote(s.next != "units" and s.has_settled(worker, s.squares))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.turn(worker, worker.state.next)
        if at is not None and worker.state.is_frozen:
            worker.state.restart(worker)
