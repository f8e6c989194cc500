"""A task beside a worker's training that handles the messages under one tag, one by one, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quorate.core.contracts import Message, Wire
from quorate.core.errors import WireTimeout

_TAG = "asked"
CLOSE = Message(header={"close": True})
"""Ends the attendant that receives it, after earlier messages."""
_IDLE_SECONDS = 60.0


class Attendant:
    """The attendant of one worker, on `wire.channel(name)`; `wire` belongs to the training thread, and the task calls
    `take(source, message)`."""

    def __init__(self, wire: Wire, name: str, take: Callable[[int, Message], None]) -> None:
        self._rank, self._take = wire.rank, take
        self._error: BaseException | None = None
        self._thread = 0
        self._messages = wire.channel(name)
        self._task = wire.spawn(self._run, name)

    @property
    def is_here(self) -> bool:
        """Whether the calling code runs in the task."""
        return threading.get_ident() == self._thread

    def send(self, message: Message, to: int) -> None:
        """Send a message to the attendant of worker `to`, which may be this one."""
        self._messages.send(message, to, _TAG)

    def check(self) -> None:
        """Raise the error that has ended the task, if there is one."""
        if self._error is not None:
            raise self._error

    def hears_of_deaths(self) -> None:
        """Let the task go on when other workers die, and receive a message: see `Wire.tolerate_deaths`."""
        self._messages.tolerate_deaths(_TAG)

    @property
    def is_over(self) -> bool:
        """Whether the task has ended; `wait` raises its error."""
        return self._task.done()

    def wait(self) -> None:
        """Wait until the task has ended; raises its error."""
        self._task.wait()

    def close(self) -> None:
        """End the task after the messages sent so far; raises its error."""
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
        receive = wire.receive(None, _TAG)
        while True:
            try:
                source, message = receive.wait(_IDLE_SECONDS)
            except WireTimeout:
                continue
            if message.header.get("close"):
                return
            receive = wire.receive(None, _TAG)
            self._take(source, message)
