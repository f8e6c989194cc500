"""Arrived messages and posted receives, matched: first in, first out per (sender, address); `Inbox` for any thread."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from quorate.core.contracts import Message

A = TypeVar("A", bound=Hashable)


class Receive(Protocol):
    """A posted receive."""

    source: int | None
    """The sender; None: any."""

    def fill(self, source: int, message: Message) -> None:
        """Complete the receive with its message."""


R = TypeVar("R", bound=Receive)


class Boxes(Generic[A, R]):
    """Messages and receives of all addresses; receives are served in the order of their calls. Not locked."""

    def __init__(self) -> None:
        self._arrived = defaultdict[A, deque[tuple[int, Message]]](deque)
        self._waiting = defaultdict[A, deque[R]](deque)
        """Neither has an empty queue, and for no source is there a message in one and a receive in the other."""

    def put(self, source: int, address: A, message: Message) -> None:
        """Add an arrived message: the first receive that fits gets it."""
        for place, receive in enumerate(self._waiting.get(address, ())):
            if receive.source is None or receive.source == source:
                _remove(self._waiting, address, place)
                receive.fill(source, message)
                return
        self._arrived[address].append((source, message))

    def ask(self, address: A, receive: R) -> None:
        """Give `receive` the next message at `address` that no earlier receive gets, now or later."""
        for place, (source, message) in enumerate(self._arrived.get(address, ())):
            if receive.source is None or receive.source == source:
                _remove(self._arrived, address, place)
                receive.fill(source, message)
                return
        self._waiting[address].append(receive)


def _remove(queues: dict[A, deque[Any]], address: A, place: int) -> None:
    queue = queues[address]
    del queue[place]
    if not queue:
        del queues[address]


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
