"""Matching messages to those who asked for them; knows no sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quorate.core.contracts import Message
from quorate.wire.boxes import Boxes


class Waiting:
    """One receive that was asked for; `filled` is set when its message is there, and `then` is called, which is short
    and may be called in any thread."""

    def __init__(self, source: int | None, then: Callable[[], None] | None = None) -> None:
        self.source, self._then = source, then
        self.filled = threading.Event()
        self.result: tuple[int, Message] | None = None

    def fill(self, source: int, message: Message) -> None:
        """Give what was waited for."""
        self.result = (source, message)
        self.filled.set()
        if self._then is not None:
            self._then()


class Inbox:
    """What came to this worker, by tag; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes = Boxes[str, Waiting]()

    def put(self, source: int, tag: str, message: Message) -> None:
        """A message has come: the first receive that fits gets it."""
        with self._lock:
            self._boxes.put(source, tag, message)

    def ask(self, source: int | None, tag: str, then: Callable[[], None] | None = None) -> Waiting:
        """Ask for the next message from `source` (None: from anyone) under `tag`; see `Waiting`."""
        waiting = Waiting(source, then)
        with self._lock:
            self._boxes.ask(tag, waiting)
        return waiting
