"""The time that a simulated worker spends on each step alone: modelled, or as a run has recorded it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quorate.core.draws import mixed
from quorate.core.durations import FORWARD_SHARE, Constant, Durations
from quorate.inject.imbalance import Imbalance
from quorate.inject.pace import Pace

_STREAM = 0xB10C


class Busy(Protocol):
    """Seconds of each rank and step (both from 0), which do not change between calls."""

    def before(self, rank: int, step: int) -> float:
        """Return the seconds from the step's beginning until the worker reaches the meeting point."""

    def backward(self, rank: int, step: int) -> float:
        """Return the last part of them, in which parts of the gradient become ready one by one, and may be sent."""

    def after(self, rank: int, step: int) -> float:
        """Return the seconds after the exchange: unpacking, and the optimizer's update."""


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Compute times, a pace and an imbalance, spent as in training: see `observe.pacing.Pacing`. The forward pass is
    `FORWARD_SHARE` of `compute`; then come the delay of the worker and the backward pass."""

    compute: Durations
    pace: Pace | None = None
    imbalance: Imbalance | None = None
    update: Durations = Constant(0.0)  # noqa: RUF009 - it is frozen
    """Seconds after the exchange."""

    def before(self, rank: int, step: int) -> float:
        whole = self.compute(rank, step)
        if self.pace is None and self.imbalance is None:
            return whole
        since = FORWARD_SHARE * whole
        paced = 0.0 if self.pace is None else self.pace.seconds(rank, step, None)
        held = max(0.0, paced - since)
        if self.imbalance is not None:
            held += self.imbalance.delay(rank, step, max(paced, since) if paced else whole)
        return whole + held

    def backward(self, rank: int, step: int) -> float:
        return (1 - FORWARD_SHARE) * self.compute(rank, step)

    def after(self, rank: int, step: int) -> float:
        return self.update(rank, step)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Times of a run's workers by step: `first[rank][step]` before the exchange, `last[rank][step]` after it.

    The first workers, as many as were recorded, have the recorded times, in that order, and repeat them. Each further
    block of as many workers has full steps of the recorded ones, drawn again for the block and the step. So a slow
    worker always stays slow, and workers that are late in the same step stay together (one in four is one in four of
    every block).
    """

    first: Sequence[Sequence[float]]
    last: Sequence[Sequence[float]]
    drawn: Sequence[int]
    """The steps to draw from: warm steps that all workers have taken."""
    seed: int = 0

    def _place(self, rank: int, step: int) -> tuple[int, int]:
        block, own = divmod(rank, len(self.first))
        if block == 0:
            return own, step % len(self.first[own])
        return own, self.drawn[mixed(self.seed, _STREAM, block, step) % len(self.drawn)]

    def before(self, rank: int, step: int) -> float:
        own, place = self._place(rank, step)
        return self.first[own][place]

    def backward(self, rank: int, step: int) -> float:
        """Return 0: recorded exchanges cost what exceeds the backward pass."""
        return 0.0

    def after(self, rank: int, step: int) -> float:
        own, place = self._place(rank, step)
        return self.last[own][place]
