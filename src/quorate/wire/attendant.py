"""A task beside a worker's training that takes the messages under one tag, one after the other, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quorate.core.contracts import Message, Wire
from quorate.core.errors import WireTimeout

_TAG = "asked"
CLOSE = Message(header={"close": True})
"""Ends the attendant that it is sent to, behind what has come by then."""
_IDLE_SECONDS = 60.0


class Attendant:
    """That of one worker, on `wire.channel(name)`; `wire` is the training thread's, and `take(source, message)` is
    called in the task."""

    def __init__(self, wire: Wire, name: str, take: Callable[[int, Message], None]) -> None:
        self._rank, self._take = wire.rank, take
        self._error: BaseException | None = None
        self._thread = 0
        self._messages = wire.channel(name)
        self._task = wire.spawn(self._run, name)

    @property
    def is_here(self) -> bool:
        """Whether whoever asks runs in the task."""
        return threading.get_ident() == self._thread

    def send(self, message: Message, to: int) -> None:
        """Give a message to the attendant of worker `to`, which may be this one."""
        self._messages.send(message, to, _TAG)

    def check(self) -> None:
        """Raise what the task has ended with."""
        if self._error is not None:
            raise self._error

    def hears_of_deaths(self) -> None:
        """From now on the task goes on when other workers die, and is told: see `Wire.tolerate_deaths`."""
        self._messages.tolerate_deaths(_TAG)

    @property
    def is_over(self) -> bool:
        """Whether the task has ended; `wait` says with what."""
        return self._task.done()

    def wait(self) -> None:
        """Until the task has ended; raises what it has ended with."""
        self._task.wait()

    def close(self) -> None:
        """End the task behind what has come by now; raises what it has ended with."""
        self.send(CLOSE, self._rank)
        self._task.wait()

    def _run(self, wire: Wire) -> None:
        self._thread = threading.get_ident()
        try:
            self._attend(wire)
        except BaseException as error:  # the training thread raises it with its next message
            self._error = error
            raise

    def _attend(self, wire: Wire) -> None:
        asked = wire.receive(None, _TAG)
        while True:
            try:
                source, message = asked.wait(_IDLE_SECONDS)
            except WireTimeout:
                continue
            if message.header.get("close"):
                return
            asked = wire.receive(None, _TAG)
            self._take(source, message)
