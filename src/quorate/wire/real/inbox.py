"""Messages matched to receives; without sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quorate.core.contracts import Message
from quorate.wire.boxes import Boxes


class Waiting:
    """A posted receive; when its message is there, `filled` is set and `then` is called, which is short, in any
    thread."""

    def __init__(self, source: int | None, then: Callable[[], None] | None = None) -> None:
        self.source, self._then = source, then
        self.filled = threading.Event()
        self.result: tuple[int, Message] | None = None

    def fill(self, source: int, message: Message) -> None:
        """Complete the receive with its message."""
        self.result = (source, message)
        self.filled.set()
        if self._then is not None:
            self._then()


class Inbox:
    """The messages that have arrived, by tag; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes = Boxes[str, Waiting]()

    def put(self, source: int, tag: str, message: Message) -> None:
        """Add an arrived message: the first receive that fits gets it."""
        with self._lock:
            self._boxes.put(source, tag, message)

    def ask(self, source: int | None, tag: str, then: Callable[[], None] | None = None) -> Waiting:
        """Post a receive of the next message from `source` (None: any worker) under `tag`; see `Waiting`."""
        waiting = Waiting(source, then)
        with self._lock:
            self._boxes.ask(tag, waiting)
        return waiting
