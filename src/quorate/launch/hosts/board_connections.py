"""Connections to the launcher's board, carried over the frames between it and an agent; both ends do the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from quorate.launch.hosts.frames import Pipes

_CHUNK = 2**16


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
        """End them all: the other end is gone."""
        for connection in self._open.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _carry(self, number: int, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(_CHUNK):
                self._pipes.send("data", number, data)
        self._pipes.send("close", number)
