"""An end of training by time, at the same step on workers that wait for each other."""

from __future__ import annotations

from quorate.core.contracts import Wire

LIMIT = "seconds limit"
"""The key in `Place.kept` of the worker's `Limit`, where there is one."""
_STOP = "limit/stop"


class Limit:
    """Loaders end when rank 0 has trained for `seconds`.

    Rank 0 writes on the board how many batches a worker takes in all: as many as it has begun itself by then. Workers
    that wait for each other are at most one step apart, so all of them stop there; one that is ahead stops at once.
    Cost: one look at the board per batch on every rank but the first.
    """

    def __init__(self, wire: Wire, seconds: float) -> None:
        self._wire, self._seconds = wire, seconds
        self._taken = 0
        self._since: float | None = None
        self._paused = 0.0
        self._stop: int | None = None

    def pause(self, seconds: float) -> None:
        """So much of the time was evaluation."""
        self._paused += seconds

    def is_reached(self) -> bool:
        """Asked before each batch; True: there are no more."""
        if self._stop is None:
            self._stop = self._decided()
        if self._stop is not None and self._taken >= self._stop:
            return True
        self._taken += 1
        return False

    def _decided(self) -> int | None:
        now = self._wire.clock.now()
        if self._since is None:
            self._since = now
        if self._wire.rank == 0:
            if now - self._since - self._paused < self._seconds:
                return None
            stop = self._taken + 1  # the others may have begun this one
            self._wire.board.set(_STOP, str(stop).encode())
            return stop
        written = self._wire.board.get(_STOP)
        return None if written is None else int(written)
