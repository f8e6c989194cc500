"""Calls that may never return, such as those of a store on an unreachable host, made by a separate thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """A call has not returned in time. If it had begun, it may still take effect later."""


class _Call(Generic[T]):
    def __init__(self, operation: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._operation, self._arguments = operation, arguments
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._given_up = False
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def run(self) -> None:
        if self._given_up:  # the caller already has the error
            return
        try:
            self._result.append(self._operation(*self._arguments))
        except BaseException as error:  # the caller raises it
            self._error = error
        self._under_way.release()

    def answer(self, seconds: float) -> T:
        if not self._under_way.acquire(timeout=max(0.0, seconds)):
            self._given_up = True
            raise NoAnswer
        if self._error is not None:
            raise self._error
        return self._result[0]


class Asker:
    """Makes calls one after the other; callers wait in Python, where signals are handled, for a limited time.

    When a call has taken `limit` seconds, all waiting and all later callers get `NoAnswer` at once. Safe from any
    thread; in a forked process calls are made directly. Cost: two changes of threads for each call, some 30 µs.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._calls = SimpleQueue[_Call[Any]]()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._since: float | None = None
        """Start of the call under way, in `time.monotonic()` seconds."""

    def ask(self, operation: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """Return the result of `operation(*arguments)`. Raises `NoAnswer` after `seconds` (at most the limit)."""
        if os.getpid() != self._process:
            return operation(*arguments)
        since = self._since
        left = self.limit if since is None else since + self.limit - time.monotonic()
        if left <= 0.0:
            raise NoAnswer
        call = _Call(operation, arguments)
        self._start()
        self._calls.put(call)
        return call.answer(left if seconds is None else min(seconds, left))

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="quorate-asker", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            self._since = time.monotonic()
            call.run()
            self._since = None
