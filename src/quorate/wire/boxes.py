"""Arrived messages and posted receives, matched: first in, first out per (sender, address); `Inbox` for any thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from quorate.core.contracts import Message

A = TypeVar("A", bound=Hashable)


class Receive(Protocol):
    """A posted receive."""

    source: int | None
    """The sender; None: any."""

    def fill(self, source: int, message: Message) -> None:
        """Complete the receive with its message."""


R = TypeVar("R", bound=Receive)


class _Box(Generic[R]):
    """Messages and receives at one address; never both for the same source."""

    def __init__(self) -> None:
        self.arrived: deque[tuple[int, Message]] = deque()
        self.waiting: deque[R] = deque()


class Boxes(Generic[A, R]):
    """Messages and receives of all addresses; receives are served in the order of their calls. Not locked."""

    def __init__(self) -> None:
        self._boxes: dict[A, _Box[R]] = {}

    def put(self, source: int, address: A, message: Message) -> None:
        """Add an arrived message: the first receive that fits gets it."""
        box = self._box(address)
        for place, receive in enumerate(box.waiting):
            if receive.source is None or receive.source == source:
                del box.waiting[place]
                self._tidy(address, box)
                receive.fill(source, message)
                return
        box.arrived.append((source, message))

    def ask(self, address: A, receive: R) -> None:
        """Give `receive` the next message at `address` that no earlier receive gets, now or later."""
        box = self._box(address)
        for place, (source, message) in enumerate(box.arrived):
            if receive.source is None or receive.source == source:
                del box.arrived[place]
                self._tidy(address, box)
                receive.fill(source, message)
                return
        box.waiting.append(receive)

    def _box(self, address: A) -> _Box[R]:
        box = self._boxes.get(address)
        if box is None:
            box = self._boxes[address] = _Box()
        return box

    def _tidy(self, address: A, box: _Box[R]) -> None:
        if not box.arrived and not box.waiting:
            del self._boxes[address]


class Gate:
    """A gate that is opened once, by one thread; any thread may wait for that. Cost: a tenth of `threading.Event`."""

    __slots__ = ("_closed", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Open the gate; it must not be open."""
        self.is_open = True
        self._closed.release()

    def wait(self, timeout: float) -> bool:
        """Wait for at most `timeout` seconds; return whether the gate is open."""
        if self.is_open:
            return True
        if self._closed.acquire(timeout=max(0.0, timeout)):
            self._closed.release()  # for others that wait
        return self.is_open


class Waiting:
    """A posted receive; when its message is there, `filled` is set and `then` is called, which is short, in any
    thread."""

    def __init__(self, source: int | None, then: Callable[[], None] | None = None) -> None:
        self.source, self._then = source, then
        self.filled = Gate()
        self.result: tuple[int, Message] | None = None

    def fill(self, source: int, message: Message) -> None:
        """Complete the receive with its message."""
        self.result = (source, message)
        self.filled.open()
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
