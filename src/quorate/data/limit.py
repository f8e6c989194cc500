"""An end of training by time, at the same step on workers that wait for each other."""

from __future__ import annotations

from quorate.core.contracts import Wire

_STOP = "limit/stop"
_EVERY = "limit/every"
_BEGAN = "limit/began"
_MEASURED = 16
"""Batches after which their duration is known."""
_LOOK_SECONDS = 0.02
_MOST = 64


class Limit:
    """Ends loaders when rank 0 has trained for `seconds`.

    Rank 0 (the first live rank, if it has died) writes to the board how many batches a worker takes in all. This is as
    many as it has begun itself by then, rounded up to a multiple of `every`. The others read the board once in so many
    batches. Workers that wait for each other are at most one step apart, so all of them stop there; one that is ahead
    stops at its next look. `every` is 1 at first; after some batches rank 0 writes how many take 20 ms together. A
    later deciding rank also reads from the board when the training began, without evaluations: it may have joined
    later. Cost: one read of the board per `every` batches on every rank but the first.
    """

    def __init__(self, wire: Wire, seconds: float) -> None:
        self._wire, self._seconds = wire, seconds
        self._taken = 0
        self._every: int | None = None
        self._since: float | None = None
        self._paused = 0.0
        self._stop: int | None = None
        self._is_deciding = False

    def pause(self, seconds: float) -> None:
        """Exclude the seconds of an evaluation."""
        self._paused += seconds
        if self._is_deciding:
            self._note_beginning()

    def is_reached(self) -> bool:
        """Return, before each batch, whether there are no more."""
        if self._stop is None:
            self._stop = self._decide() if self._decides() else self._look()
        if self._stop is not None and self._taken >= self._stop:
            return True
        self._taken += 1
        return False

    def had_none(self) -> None:
        """Note that an epoch has ended without another batch: workers did not wait for each other in between."""
        self._taken -= 1

    def _decides(self) -> bool:
        if self._since is None:
            self._since = self._wire.clock.now()
        return self._wire.rank == 0 or (bool(self._wire.dead) and self._wire.rank == self._wire.alive[0])

    @property
    def taken(self) -> int:
        """Batches so far."""
        return self._taken

    def enter_at(self, taken: int) -> None:
        """Count on from another worker's number."""
        self._taken = taken

    def _decide(self) -> int | None:
        now = self._wire.clock.now()
        assert self._since is not None, "it began with the first batch"
        written = self._wire.board.get(_STOP) if self._wire.dead else None
        if written is not None:
            return int(written)  # the one before has decided
        if not self._is_deciding:
            self._is_deciding = True
            began = self._wire.board.get(_BEGAN) if self._wire.dead else None
            if began is not None:
                self._since, self._paused = float(began), 0.0
            self._note_beginning()
        trained = now - self._since - self._paused
        if trained >= self._seconds:
            every = self._every or 1
            stop = (self._taken // every + 1) * every  # the others may have begun this one
            self._wire.board.set(_STOP, str(stop).encode())
            return stop
        if self._taken == _MEASURED:
            together = int(_LOOK_SECONDS * _MEASURED / trained) if trained > 0 else _MOST
            self._every = max(1, min(_MOST, together))
            self._wire.board.set(_EVERY, str(self._every).encode())
        return None

    def _note_beginning(self) -> None:
        assert self._since is not None, "it began with the first batch"
        self._wire.board.set(_BEGAN, repr(self._since + self._paused).encode())

    def _look(self) -> int | None:
        if self._taken % (self._every or 1):
            return None
        board = self._wire.board
        if self._every is None and self._taken >= _MEASURED:
            value = board.get(_EVERY)
            self._every = None if value is None else int(value)
        written = board.get(_STOP)
        return None if written is None else int(written)
