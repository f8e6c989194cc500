"""Jobs done beside the thread of a wire, one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from quorate.core.contracts import Wire


class Turns:
    """A task that lives while there are jobs; the thread of the wire calls `add`. A job gets the task's own channel,
    and raises nothing."""

    def __init__(self, wire: Wire, channel: str) -> None:
        self._wire, self._channel, self._lock = wire, channel, threading.Lock()
        self._waiting = deque[Callable[[Wire], None]]()
        self._is_working = False

    def add(self, job: Callable[[Wire], None]) -> None:
        """Run `job` after the earlier ones; never waits."""
        with self._lock:
            self._waiting.append(job)
            is_working, self._is_working = self._is_working, True
        if not is_working:
            self._wire.spawn(self._run, self._channel)

    def _run(self, wire: Wire) -> None:
        while (job := self._next()) is not None:
            job(wire)

    def _next(self) -> Callable[[Wire], None] | None:
        with self._lock:
            self._is_working = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None
