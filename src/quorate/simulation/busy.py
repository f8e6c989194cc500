"""How long a simulated worker is at work on each step by itself: as modelled, or as a run has recorded it. Pure."""

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
    """Seconds of each rank and step (both from 0); the same whenever it is asked."""

    def before(self, rank: int, step: int) -> float:
        """From the step's beginning until the worker comes to the meeting point."""

    def backward(self, rank: int, step: int) -> float:
        """The end of that in which parts of the gradient are ready one after the other, and may travel."""

    def after(self, rank: int, step: int) -> float:
        """What the worker does after its exchange: unpacking, and the optimizer's update."""


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Compute times, a pace and an imbalance, spent as training spends them: see `observe.pacing.Pacing`.

    The forward pass is `FORWARD_SHARE` of what `compute` says; then the worker is held, then comes the backward pass.
    """

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
    """What the workers of a run took, step by step: `first[rank][step]` before the exchange, `last[rank][step]` after.

    The first workers, as many as were recorded, take what those took, in that order, and from the start again when it
    is used up. Each further block of as many workers takes whole steps of the recorded ones, drawn anew for the block
    and the step: so who is slow always stays slow, and who is late in the same step stays together (one in four is
    one in four of every block).
    """

    first: Sequence[Sequence[float]]
    last: Sequence[Sequence[float]]
    drawn: Sequence[int]
    """The steps that are drawn from: those that all took, and that measure."""
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
        """See `Busy`; none: what a run has recorded of its exchanges is what they cost beyond the backward pass."""
        return 0.0

    def after(self, rank: int, step: int) -> float:
        own, place = self._place(rank, step)
        return self.last[own][place]
