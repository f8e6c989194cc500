"""Frames between the launcher and an agent, on the agent's stdin and stdout.

| from the launcher | |
|---|---|
| `start`, JSON | start a worker: rank, words, folder, environment |
| `signal`, rank, number, `0` or `1` | pass a signal on: to the worker, or to its group |
| `data`, number, bytes; `close`, number | of a connection to the board |
| `look`, JSON | say what is in a folder: the folder, names of files |
| `beat` | the launcher is there |
| `leave` | no more is to come; end when nobody is left |

| from the agent | |
|---|---|
| `hello`, JSON | the first frame: versions, host, an address, a free port |
| `out` or `err`, rank, bytes | a worker has written something |
| `ended`, rank, status | a worker has ended, and has written no more |
| `seen`, JSON | by file that is there, its SHA-256 |
| `refused`, sentence | a worker cannot be started here |
| `open`, number; `data`, number, bytes; `close`, number | of a connection to the board |
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from quorate.wire.board_frames import read_frame, write_frame

MARK = b"\nquorate agent 1\n"
"""Sent before the first frame, as a login shell may have printed something."""
BEAT = 2.0
"""Seconds between two beats."""

_CHUNK = 2**16


class Pipes:
    """Two descriptors as one stream of frames; several threads may send."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()

    def recv(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        with suppress(OSError):
            return os.read(self._read, size)
        return b""

    def sendall(self, data: bytes, /) -> None:
        """All of them."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._write, left) :]

    def send(self, *parts: bytes | str | int) -> bool:
        """Write one frame; return False if the other end has closed."""
        frame = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
        with suppress(OSError), self._lock:
            write_frame(self, frame)
            return True
        return False

    def next(self) -> list[bytes] | None:
        """The next frame; None at the end. Raises `BadFrame`."""
        return read_frame(self)


class BoardConnections:
    """The connections of one end, by the number that both ends use."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._open: dict[int, socket.socket] = {}

    def add(self, number: int, connection: socket.socket) -> None:
        """Forward its bytes, in a thread, until it ends."""
        self._open[number] = connection
        threading.Thread(target=self._carry, args=(number, connection), name="quorate board", daemon=True).start()

    def takes(self, frame: Sequence[bytes]) -> bool:
        """Do what a frame says, if it is of one of them."""
        match frame:
            case [b"data", number, data]:
                with suppress(OSError, KeyError):
                    self._open[int(number)].sendall(data)
            case [b"close", number]:
                with suppress(OSError, KeyError):
                    self._open.pop(int(number)).shutdown(socket.SHUT_RDWR)
            case _:
                return False
        return True

    def close(self) -> None:
        """End them all: the other end has closed."""
        for connection in self._open.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _carry(self, number: int, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(_CHUNK):
                self._pipes.send("data", number, data)
        self._pipes.send("close", number)


def in_thread(target: Any, *args: Any) -> threading.Thread:
    """Start a daemon thread that makes this call, and return it."""
    thread = threading.Thread(target=target, args=args, name="quorate host", daemon=True)
    thread.start()
    return thread
