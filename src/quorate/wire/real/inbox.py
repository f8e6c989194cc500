"""Matching messages to those who asked for them; knows no sockets."""

from __future__ import annotations

import threading
from collections import deque

from quorate.core.contracts import Message


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


class _Box:
    """What came and who waits under one tag; never both for the same source."""

    def __init__(self) -> None:
        self.arrived: deque[tuple[int, Message]] = deque()
        self.waiting: deque[Waiting] = deque()


class Inbox:
    """First in, first out per (sender, tag); receives are served in the order they were asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, _Box] = {}

    def put(self, source: int, tag: str, message: Message) -> None:
        """A message has come: the first receive that fits gets it."""
        with self._lock:
            box = self._boxes.setdefault(tag, _Box())
            for waiting in box.waiting:
                if waiting.source is None or waiting.source == source:
                    box.waiting.remove(waiting)
                    waiting.fill(source, message)
                    break
            else:
                box.arrived.append((source, message))
            self._tidy(tag, box)

    def ask(self, source: int | None, tag: str) -> Waiting:
        """Ask for the next message from `source` (None: from anyone) under `tag`."""
        waiting = Waiting(source)
        with self._lock:
            box = self._boxes.setdefault(tag, _Box())
            for place, (sender, message) in enumerate(box.arrived):
                if source is None or sender == source:
                    del box.arrived[place]
                    waiting.fill(sender, message)
                    break
            else:
                box.waiting.append(waiting)
            self._tidy(tag, box)
        return waiting

    def _tidy(self, tag: str, box: _Box) -> None:
        if not box.arrived and not box.waiting:
            del self._boxes[tag]
