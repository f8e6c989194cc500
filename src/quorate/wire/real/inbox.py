"""Matching messages to those who asked for them; knows no sockets."""

from __future__ import annotations

import threading

from quorate.core.contracts import Message
from quorate.wire.boxes import Boxes


class Waiting:
    """One receive that was asked for; `filled` is set when its message is there."""

    def __init__(self, source: int | None) -> None:
        self.source = source
        self.filled = threading.Event()
        self.result: tuple[int, Message] | None = None

    def fill(self, source: int, message: Message) -> None:
        """Give what was waited for."""
        self.result = (source, message)
        self.filled.set()


class Inbox:
    """What came to this worker, by tag; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes = Boxes[str, Waiting]()

    def put(self, source: int, tag: str, message: Message) -> None:
        """A message has come: the first receive that fits gets it."""
        with self._lock:
            self._boxes.put(source, tag, message)

    def ask(self, source: int | None, tag: str) -> Waiting:
        """Ask for the next message from `source` (None: from anyone) under `tag`."""
        waiting = Waiting(source)
        with self._lock:
            self._boxes.ask(tag, waiting)
        return waiting
