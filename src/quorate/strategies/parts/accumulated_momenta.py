"""Local steps whose momenta add up to the delta from a common point, as in 0/1 Adam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.edits import WithPoint
from quorate.strategies.parts.momenta import Momenta, begin_warm_up, blank_with

Kind = Literal["squares", "units", "momenta"]
_LEAST = 1e-20
"""The least rate in u_i, so that a momentum survives steps without a rate."""


@dataclass(kw_only=True)
class AccumulatedMomenta(Momenta, WithPoint):
    """The momentum of one worker, and its local steps since the point that all had in common."""

    next: Kind = kept("same", default="squares")
    """The content of the next mean."""
    squares: int = kept("same", default=0)
    """The number of squares in the variance."""
    steps: int = kept("same", default=0)
    """The number of steps before the freeze, or since then."""
    due: int = kept("same", default=1)
    """The number of the step that has squares next."""
    point: Flat | None = kept("same", default=None)
    """x_{t'}: the parameters after the last mean."""
    moved: Flat | None = kept("average", default=None)
    """u_i."""
    rates: list[float] = kept("average", default_factory=list, is_adapted=True)
    """The sum of the rates in u_i, by parameter group."""
    local: float = kept("average", default=0.0)
    """The number of steps in u_i."""
    weight: float = kept("average", default=0.0)
    """The sum of their weights."""

    shown: Flat | None = kept("drop", default=None)
    """The parameters after the newest local step."""

    def count_squares(self, doubles_after: int) -> None:
        """Count the squares of this step, whose distance doubles after so many of them."""
        self.squares += 1
        self.due = self.steps + 1 + int(2 ** min(self.squares // doubles_after, 30))

    def begin_local_steps(self, worker: Worker) -> None:
        """Freeze the variance."""
        self.is_frozen, self.steps = True, 0
        worker.replica.moments.correct_variance(self.squares)
        self.restart(worker)

    def distance(self, double_every: int, longest: int) -> int:
        """Return the number of steps from the last mean to the next."""
        return min(longest, int(2 ** min(self.steps // double_every, 30)))

    def move(self, worker: Worker, momentum: Flat) -> None:
        """Add a local step to u_i."""
        rates = [max(rate, _LEAST) for rate in worker.replica.learning_rates]
        moved = worker.replica.by_group(momentum, rates)
        self.moved = moved if self.moved is None else self.moved.add_(moved)
        self.rates = [total + rate for total, rate in zip(self.rates or [0.0] * len(rates), rates, strict=True)]
        self.local, self.weight = self.local + 1, self.weight + worker.weight

    def go_back(self, worker: Worker) -> None:
        """Return to the common point, which moves by what the script has written into the parameters since then."""
        assert self.point is not None
        worker.replica.take_edits(self.point if self.shown is None else self.shown, into=self.point)
        worker.parameters = self.point

    def forget_steps(self) -> None:
        self.moved, self.rates, self.local, self.weight = None, [], 0.0, 0.0

    def restart(self, worker: Worker) -> None:
        """Begin local steps from the parameters as they are."""
        self.point, self.shown = worker.parameters, None
        self.forget_steps()

    def turn(self, worker: Worker, kind: Kind) -> None:
        """Let the next mean be of this kind."""
        self.next = kind
        if kind == "momenta":
            self.encode(worker, worker.gradient)
        else:
            worker.means.code(None)


def begin_squares(worker: Worker) -> AccumulatedMomenta:
    """Return the state before the first step; the optimizer may have moments from before."""
    begin_warm_up(worker, None)
    worker.means.code(None)
    if worker.step:  # other parameters are trained than before, and the variances of new ones have no squares
        worker.replica.forget_moments()
    count = worker.replica.moments.steps
    return AccumulatedMomenta(squares=count, steps=count, due=count + 1)


def numbered(worker: Worker, rates: Sequence[float], x: Flat | None = None, uncounted: int = 0) -> Flat:
    """Return a vector with the rates behind it, and the number of steps, which is less where a worker has paused."""
    return blank_with(worker, [*rates, worker.replica.moments.steps + uncounted], x)
