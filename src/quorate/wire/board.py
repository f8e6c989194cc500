"""Boards without torch: in one process, and over a Unix socket to the launcher's (served by `board_server`).

Boards over a c10d store, and stores over a board, are in `store`.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakSet

from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout
from quorate.wire.board_frames import BadFrame, read_frame, write_frame
from quorate.wire.failure import FAILED, failure_in

SLICE = 0.05
"""Seconds that a wait sleeps at most before it checks for failures."""


def not_written(keys: Sequence[str], timeout: float) -> WireTimeout:
    """Return the error of a wait for `keys`, which are missing after `timeout` seconds."""
    shown = ", ".join(f'"{key}"' for key in keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
    return WireTimeout(f"nothing was written under {shown} on the board within {timeout:g} s")


_COUNTS, _COUNT_BYTES = 512, 8
_MOST_PEEKED = 256
"""The most combinations of keys whose values are kept."""


class Writes:
    """How often the keys of a board were written, in a file that all processes of its host map.

    Keys are in groups, by a hash, of which each has a count. Where no count has changed, no value has either.
    """

    def __init__(self, board: str, *, is_new: bool = False) -> None:
        self.path = f"{board}.writes"
        file = os.open(self.path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if is_new else 0), 0o600)
        try:
            if is_new:
                os.ftruncate(file, _COUNTS * _COUNT_BYTES)
            self._counts = memoryview(mmap.mmap(file, _COUNTS * _COUNT_BYTES)).cast("Q")
        finally:
            os.close(file)

    def count(self, key: str) -> None:
        """Count a write of `key`, or its deletion; one thread at a time."""
        self._counts[_group(key)] += 1

    def counts(self, keys: Sequence[str]) -> list[int]:
        """Return the counts of the groups of `keys`."""
        return [self._counts[_group(key)] for key in keys]


def _group(key: str) -> int:
    return zlib.crc32(key.encode()) % _COUNTS


class MemoryBoard(Board):
    """A board inside one process, which the launcher serves, and which a worker alone uses. `wrote(key)` is called for
    each key that was written or deleted, by one thread at a time."""

    def __init__(self, wrote: Callable[[str], None] = lambda key: None) -> None:
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}
        self._wrote = wrote
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = bytes(value)
            self._wrote(key)
            self._changed.notify_all()

    def get(self, key: str) -> bytes | None:
        with self._changed:
            return self._values.get(key)

    def add(self, key: str, amount: int = 1) -> int:
        with self._changed:
            self._counters[key] = self._counters.get(key, 0) + amount
            return self._counters[key]

    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        with self._changed:
            if self._values.get(key) != expected:
                return False
            self._values[key] = bytes(value)
            self._wrote(key)
            self._changed.notify_all()
            return True

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        missing, failed = self.look(keys, limit)
        if missing and failed is not None:
            raise failure_in(failed)
        if missing:
            raise not_written(missing, limit)

    def look(self, keys: Sequence[str], seconds: float) -> tuple[list[str], bytes | None]:
        """Wait until every key is written, a worker has failed, or `seconds` have passed.

        Returns the missing keys, and the value of the key `failed`.
        """
        with self._changed:
            self._changed.wait_for(lambda: FAILED in self._values or not self._missing(keys), seconds)
            return self._missing(keys), self._values.get(FAILED)

    def delete(self, prefix: str) -> None:
        with self._changed:
            for written in (self._values, self._counters):
                for key in [key for key in written if key.startswith(prefix)]:
                    del written[key]
                    self._wrote(key)

    def _missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self._values]


class _Connection:
    """One stream to the server; closed when it is no longer referenced (its thread has ended)."""

    def __init__(self, path: str) -> None:
        self.process = os.getpid()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    @property
    def is_closed(self) -> bool:
        """Whether the other side has closed it; false while a request is under way."""
        return bool(self._poll.poll(0))

    def __del__(self) -> None:
        self.socket.close()


class SocketBoard(Board):
    """The board of the launcher on this machine, reached over the Unix socket file `path`.

    Each thread (and each forked process) has a connection of its own, so a wait blocks no other thread. One request
    and one reply per call, about 50 us; `peek` and `peek_all` need none, and some 3 us, while nothing was written under
    their keys (see `Writes`). Raises `PeerFailed` when the launcher has ended.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._mine = threading.local()
        self._all: WeakSet[_Connection] = WeakSet()
        self._lock = threading.Lock()
        self._connection()
        self._writes: Writes | None = None
        with suppress(OSError, ValueError):
            self._writes = Writes(self.path)
        self._peeked: dict[tuple[str, ...], tuple[list[int], list[bytes | None]]] = {}

    def set(self, key: str, value: bytes) -> None:
        self._ask(b"set", key.encode(), value)

    def get(self, key: str) -> bytes | None:
        reply = self._ask(b"get", key.encode())
        return reply[0] if reply else None

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        reply = self._ask(b"get all", *(key.encode() for key in keys))
        return [written[1:] if written[:1] == b"+" else None for written in reply]

    def peek(self, key: str) -> bytes | None:
        return self.peek_all([key])[0]

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        if self._writes is None:
            return self.get_all(keys)
        counts, key = self._writes.counts(keys), tuple(keys)
        peeked = self._peeked.get(key)
        if peeked is None or peeked[0] != counts or self._connection().is_closed:
            if len(self._peeked) >= _MOST_PEEKED:
                self._peeked.clear()
            peeked = self._peeked[key] = counts, self.get_all(keys)
        return list(peeked[1])

    def add(self, key: str, amount: int = 1) -> int:
        return int(self._ask(b"add", key.encode(), b"%d" % amount)[0])

    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        expectation = () if expected is None else (expected,)
        return self._ask(b"swap", key.encode(), value, *expectation)[0] == b"1"

    def delete(self, prefix: str) -> None:
        self._ask(b"delete", prefix.encode())

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + limit
        missing = list(keys)
        while True:
            left = max(0.0, deadline - time.monotonic())
            slice_ms = b"%d" % (1000 * min(SLICE, left))
            try:
                # A launcher that was stopped does not answer, and then the timeout still holds.
                reply = self._ask(b"look", slice_ms, *(key.encode() for key in missing), seconds=left + 1.0)
            except _NoAnswer:
                raise not_written(missing, limit) from None
            count = int(reply[0])
            missing = [key.decode() for key in reply[1 : 1 + count]]
            if not missing:
                return
            if len(reply) > 1 + count:
                raise failure_in(reply[-1])
            if time.monotonic() >= deadline:
                raise not_written(missing, limit)

    def close(self) -> None:
        """Close every thread's connection. A later call would open a new one."""
        with self._lock:
            for connection in list(self._all):
                connection.socket.close()
            self._all = WeakSet()
            self._mine = threading.local()

    def _connection(self) -> _Connection:
        connection: _Connection | None = getattr(self._mine, "connection", None)
        if connection is None or connection.process != os.getpid():
            try:
                connection = _Connection(self.path)
            except OSError as error:
                if "too long" in str(error):
                    raise ConfigurationError(f'the board\'s path, "{self.path}", is too long for a socket') from None
                raise PeerFailed(f"the launcher has ended (its board at {self.path} does not answer)") from error
            self._mine.connection = connection
            with self._lock:
                self._all.add(connection)
        return connection

    def _ask(self, *parts: bytes, seconds: float = DEFAULT_TIMEOUT) -> list[bytes]:
        connection = self._connection()
        try:
            connection.socket.settimeout(seconds)
            write_frame(connection.socket, parts)
            reply = read_frame(connection.socket)
        except TimeoutError:
            self._drop(connection)
            raise _NoAnswer(f"the launcher has not answered for {seconds:g} s") from None
        except BadFrame as error:
            raise ConfigurationError(str(error)) from None
        except OSError as error:
            self._drop(connection)
            raise PeerFailed("the launcher has ended") from error
        except BaseException:
            # Interrupted between request and reply: the next reply on this stream would be the wrong one.
            self._drop(connection)
            raise
        if reply is None:
            self._drop(connection)
            raise PeerFailed("the launcher has ended")
        return reply

    def _drop(self, connection: _Connection) -> None:
        connection.socket.close()
        self._mine.connection = None


class _NoAnswer(WireTimeout):
    """The launcher lives and does not answer."""
