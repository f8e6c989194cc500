"""The barrier of a pause: every worker reaches the same place before any continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from quorate.core.contracts import Wire, Work
from quorate.core.errors import WireTimeout
from quorate.rounds.entering import Replica, say_over
from quorate.rounds.terms import Agreed
from quorate.wire.survivors import Survivors

_SECONDS = 0.02


class Meeting:
    """The barrier of one worker; `wire` is that of its rounds."""

    def __init__(self, wire: Wire, agreed: Agreed, replica: Replica) -> None:
        self._wire, self._size, self._replica = wire, agreed.size, replica
        self._among: Survivors | Wire = Survivors(wire.channel("meeting")) if agreed.tolerates_death else wire

    def meet(self, number: int, joined: Sequence[int], *, is_over: bool, meanwhile: Callable[[], None]) -> None:
        """Wait for all workers that paused in round `number`; call `meanwhile` now and then."""
        if joined:
            self._replica.met(number, joined)
            if isinstance(self._among, Survivors):
                self._among.among([*range(self._size), *joined], number)
        if is_over:
            say_over(self._wire)
        met: Work[Any] = self._among.barrier()
        while not met.done():
            meanwhile()
            with suppress(WireTimeout):
                met.wait(_SECONDS)
        met.wait()
