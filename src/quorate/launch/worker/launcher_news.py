"""News between a launcher and the workers of several hosts, which have two boards.

`quorate run --hosts` has a board, at which its workers meet; between hosts these keep their notes among themselves from
then on, so that nothing waits for the launcher. Each worker passes on what is new, both ways, twice a second, where its
training begins and ends, and at its own end: failures, deaths, and requests to leave.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from quorate.core.contracts import Board
from quorate.core.errors import QuorateError
from quorate.launch.run.requests import ask_to_stop, asked_to_stop, tell_on
from quorate.wire.failure import pass_on, say_of
from quorate.wire.real.wire import RealWire
from quorate.wire.used import pass_on_used


@dataclass
class LauncherNews:
    """One of each worker; `board` is the launcher's, where it is another one than the workers'."""

    board: Board | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    """A thread writes its news before another one reads: else old news would be written over new."""

    def pass_on(self, wire: RealWire) -> None:
        """Let both know what either does. Raises as boards do."""
        launcher, ours = self.board, wire.board
        if launcher is None:
            return
        with self._one_at_a_time:
            say_of(wire.rank, ours, launcher)
            tell_on(wire.rank, ours, launcher)
            pass_on(ours, launcher)
            pass_on_used(ours, launcher)
            pass_on(launcher, ours)
            for source, target in ((launcher, ours), (ours, launcher)):
                status = asked_to_stop(source)
                if status is not None and asked_to_stop(target) is None:
                    ask_to_stop(target, status)

    def try_to_pass_on(self, wire: RealWire) -> None:
        """Pass on the news; errors of a board that does not answer are reported elsewhere."""
        with suppress(QuorateError, OSError):
            self.pass_on(wire)
