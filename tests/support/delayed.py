"""`Delayed`: makes a worker late, call by call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from quorate.core.contracts import Wire, Work
from quorate.wire.metered import Wrapped

T = TypeVar("T")
Delay = Callable[[str, int], float]
"""(operation, its number on this worker, from 1) -> seconds."""


class Delayed(Wrapped):
    """Sleeps on the wire's clock for `delay(operation, number)` seconds before each call."""

    def __init__(self, inner: Wire, delay: Delay, _count: list[int] | None = None) -> None:
        super().__init__(inner)
        self._delay = delay
        self._count = [0] if _count is None else _count

    def _again(self, inner: Wire) -> Wire:
        return Delayed(inner, self._delay, self._count)

    def _call(self, operation: str, launch: Callable[[], Work[T]], payload: Any, peer: int | None) -> Work[T]:
        self._count[0] += 1
        seconds = self._delay(operation, self._count[0])
        if seconds > 0:
            self.clock.sleep(seconds)
        return launch()
