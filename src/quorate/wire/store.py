"""Boards and c10d stores: a board in a store, and a store on a board."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from torch.distributed import Store

from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.errors import PeerFailed
from quorate.wire.board import not_written
from quorate.wire.failure import FAILED, failure_in

T = TypeVar("T")

_NONCE = 12
_ANSWERS_WITHIN = 1.0
"""Seconds that a wait may take longer where the store does not answer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


class StoreBoard(Board):
    """A board kept in a c10d store, such as the TCPStore that torchrun gives.

    Values live under `v/`, counters under `n/`. Every stored value begins with 12 random bytes, so that of two
    workers that propose equal values exactly one reads its own. Reading is a compare-and-set that cannot
    succeed: unlike the store's `get` it never waits, also where the key has just been deleted.

    `wait` polls, every 20 ms at most: the store's own wait would keep the client's other threads out. `delete` takes
    every key with the prefix where the store can list its keys (torch 2.10 and later can); elsewhere only the keys
    that were written through this object. Raises `PeerFailed` when the store's server has ended, and when it has not
    answered for `timeout` seconds.
    """

    def __init__(self, store: Store, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._store = store
        self._asker = Asker(timeout)
        self._written: set[str] = set()

    def set(self, key: str, value: bytes) -> None:
        self._written.add(f"v/{key}")
        self._call(self._store.set, f"v/{key}", _stamped(value))
        # A TCPStore sends its writes and does not wait: others could still read the old value. The answer to a
        # question asked on the same connection says that the write is done.
        self._call(self._store.check, [f"v/{key}"])

    def get(self, key: str) -> bytes | None:
        raw = self._read(key)
        return None if raw is None else raw[_NONCE:]

    def add(self, key: str, amount: int = 1) -> int:
        self._written.add(f"n/{key}")
        return int(self._call(self._store.add, f"n/{key}", amount))

    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        proposal = _stamped(value)
        while True:
            raw = self._read(key)
            if (None if raw is None else raw[_NONCE:]) != expected:
                return False
            self._written.add(f"v/{key}")
            # An empty expectation means a missing key; on a missing key a non-empty one stores nothing, and the
            # store answers with the expected value, which differs from the proposal.
            if bytes(self._call(self._store.compare_set, f"v/{key}", raw or b"", proposal)) == proposal:
                return True

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + limit
        pause = _FIRST_PAUSE
        while True:
            seconds = max(0.0, deadline - time.monotonic()) + _ANSWERS_WITHIN
            try:
                missing = [key for key in keys if not self._call(self._store.check, [f"v/{key}"], seconds=seconds)]
                raw = self._read(FAILED, seconds) if missing else None
            except _Silent:
                raise not_written(keys, limit) from None
            if not missing:
                return
            if raw is not None:
                raise failure_in(raw[_NONCE:])
            left = deadline - time.monotonic()
            if left <= 0:
                raise not_written(missing, limit)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def delete(self, prefix: str) -> None:
        starts = (f"v/{prefix}", f"n/{prefix}")
        for key in [key for key in self._keys() if key.startswith(starts)]:
            self._call(self._store.delete_key, key)
            self._written.discard(key)

    def _keys(self) -> list[str]:
        if hasattr(self._store, "list_keys"):
            try:
                return list(self._store.list_keys())
            except (NotImplementedError, RuntimeError):
                # This kind of store cannot; a store whose server has ended fails in the deletions below.
                return list(self._written)
        return list(self._written)

    def _read(self, key: str, seconds: float | None = None) -> bytes | None:
        never = secrets.token_bytes(_NONCE)
        raw = bytes(self._call(self._store.compare_set, f"v/{key}", never, never, seconds=seconds))
        return None if raw == never else raw

    def _call(self, operation: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        try:
            return self._asker.ask(operation, *arguments, seconds=seconds)
        except NoAnswer:
            limit = self._asker.limit if seconds is None else seconds
            raise _Silent(f"the store of this run has not answered for {limit:g} s") from None
        except RuntimeError as error:
            raise PeerFailed(f"the store of this run has ended: {str(error).splitlines()[0]}") from error


class _Silent(PeerFailed):
    """The store does not answer."""


def _stamped(value: bytes) -> bytes:
    return secrets.token_bytes(_NONCE) + value


class BoardStore(Store):
    """A c10d store kept on a board under `prefix`; process groups meet in it.

    `get` and `wait` raise the `PeerFailed` of the first failed worker as soon as it is on the board, which c10d's own
    stores cannot. `wait` and `get` wait for `timeout` seconds at most where c10d names no timeout.
    """

    def __init__(self, board: Board, prefix: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self._board = board
        self._prefix = prefix
        self._seconds = timeout

    def set(self, key: str, value: bytes | str) -> None:
        self._board.set(self._at(key), _bytes(value))

    def get(self, key: str) -> bytes:
        while True:
            self._board.wait([self._at(key)], self._seconds)
            value = self._board.get(self._at(key))
            if value is not None:
                return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._board.wait([self._at(key) for key in keys], seconds)

    def add(self, key: str, value: int) -> int:
        # Not the board's counters: c10d waits for, reads and counts its counters like any other key.
        while True:
            before = self._board.get(self._at(key))
            after = int(before or b"0") + value
            if self._board.swap(self._at(key), before, b"%d" % after):
                return after

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._board.get(self._at(key)) is not None for key in keys)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Write `desired` if `key` holds `expected`, as torch's stores do; return the value then there."""
        old, new = _bytes(expected), _bytes(desired)
        while True:
            before = self._board.get(self._at(key))
            if before != old and not (before is None and not old):
                return old if before is None else before
            if self._board.swap(self._at(key), before, new):
                return new

    def delete_key(self, key: str) -> bool:
        """Delete `key`; return whether it was there."""
        there = self._board.get(self._at(key)) is not None
        self._board.delete(self._at(key))
        return there

    def _at(self, key: str) -> str:
        # The mark at the end keeps delete_key("a") from taking "ab" with it.
        return f"{self._prefix}/{key}\0"


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


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
