"""The time that a simulated worker spends on each step alone: modelled, or as a run has recorded it. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quorate.core.draws import mixed
from quorate.core.durations import FORWARD_SHARE, Constant, Durations
from quorate.inject.imbalance import Imbalance
from quorate.inject.pace import Pace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STREAM = 0xB10C
_MOST_KEPT = 1 << 22
"""Steps of workers whose seconds are kept at a time; older ones are drawn again where they are asked for."""


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


@dataclass(frozen=True)
class _Row:
    """One step of all workers, by rank."""

    before: array[float]
    backward: array[float]
    after: array[float]


class Drawn:
    """The seconds of another `Busy`, drawn once for all simulations of the same `workers`.

    Rows of all workers are drawn a step at a time, and are the same numbers. Cost: 24 bytes for each step of a worker.
    """

    def __init__(self, busy: Busy, workers: int) -> None:
        self._busy, self._workers = busy, workers
        self._most = max(2, _MOST_KEPT // workers)
        self._rows: dict[int, _Row] = {}
        self._next = 0

    def before(self, rank: int, step: int) -> float:
        """See `Busy`."""
        row = self._rows.get(step) or self._drawn(step)
        return self._busy.before(rank, step) if row is None else row.before[rank]

    def backward(self, rank: int, step: int) -> float:
        """See `Busy`."""
        row = self._rows.get(step) or self._drawn(step)
        return self._busy.backward(rank, step) if row is None else row.backward[rank]

    def after(self, rank: int, step: int) -> float:
        """See `Busy`."""
        row = self._rows.get(step) or self._drawn(step)
        return self._busy.after(rank, step) if row is None else row.after[rank]

    def of_all(self, step: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the three of all workers in `step`, by rank."""
        import numpy as np

        row: Any = self._rows.get(step) or self._drawn(step) or self._row(step)
        return np.frombuffer(row.before), np.frombuffer(row.backward), np.frombuffer(row.after)

    def _drawn(self, step: int) -> _Row | None:
        """Return the new row `step`; None for an old one, which is not kept any more."""
        if step < self._next:
            return None
        row = self._rows[step] = self._row(step)
        self._next = max(self._next, step + 1)
        if len(self._rows) > self._most:
            del self._rows[min(self._rows)]
        return row

    def _row(self, step: int) -> _Row:
        busy, ranks = self._busy, range(self._workers)
        return _Row(
            array("d", [busy.before(rank, step) for rank in ranks]),
            array("d", [busy.backward(rank, step) for rank in ranks]),
            array("d", [busy.after(rank, step) for rank in ranks]),
        )
