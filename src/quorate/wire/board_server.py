"""The launcher's end of a `SocketBoard`: a board in memory, served on a Unix socket file."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.wire.board import SLICE, MemoryBoard, Writes
from quorate.wire.board_frames import BadFrame, read_frame, write_frame
from quorate.wire.failure import report_failure
from quorate.wire.socket_folder import LONGEST_PATH

_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_SENTENCE = (
    "the launcher has as many open files as a process may have, and no more workers can join; raise the limit: "
    "ulimit -n"
)
_PAUSE = 0.1
"""Seconds until the launcher accepts connections again."""


class BoardServer:
    """Serves `board` at the socket file `path` until `close`; nothing listens on the network.

    Only this user can reach it: the file has mode 0600, in a directory that is made with 0700 or refused where others
    can enter it. One thread per connection. A connection that sends garbage is closed; the others are not affected.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise ConfigurationError(
                f'the path of the board, "{self.path}", is longer than the {LONGEST_PATH} bytes a socket may have'
            )
        folder = Path(self.path).parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            raise ConfigurationError(f'the folder of the board, "{folder}", is open to other users; give it mode 0700')
        self.accepted = 0
        """Number of connections so far."""
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._writes = Writes(self.path, is_new=True)
        self.board = MemoryBoard(self._writes.count)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.path)
            os.chmod(self.path, 0o600)
            self._listener.listen(1024)
        except OSError:
            self._listener.close()
            os.unlink(self._writes.path)
            raise
        self._door = threading.Thread(target=self._accept, name="quorate board", daemon=True)
        self._door.start()

    def close(self) -> None:
        """Close every connection and remove the file. Clients notice the end of the launcher at once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # A thread inside accept() is woken by one more connection, on every system.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
            knock.connect(self.path)
        self._door.join()
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for path in (self.path, self._writes.path):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _accept(self) -> None:
        coming = select.poll()
        coming.register(self._listener, select.POLLIN)
        while True:
            coming.poll()  # a call of accept would take a descriptor while it waits
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed or error.errno not in _TOO_MANY_FILES:
                    return
                report_failure(self.board, 0, _SENTENCE, kind="mismatch")
                time.sleep(_PAUSE)
                continue
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._connections.add(connection)
                self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), name="quorate board", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            # A client that has ended, or that sends no valid request, ends its own connection alone.
            with suppress(OSError, BadFrame):
                while (request := read_frame(connection)) is not None:
                    write_frame(connection, self._answer(request))
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """Return the reply to a request. Raises `BadFrame` where it is none."""
        try:
            match request:
                case [b"set", key, value]:
                    self.board.set(key.decode(), value)
                    return []
                case [b"get", key]:
                    written = self.board.get(key.decode())
                    return [] if written is None else [written]
                case [b"get all", *keys]:
                    values = self.board.get_all([key.decode() for key in keys])
                    return [b"" if written is None else b"+" + written for written in values]
                case [b"add", key, amount]:
                    return [b"%d" % self.board.add(key.decode(), int(amount))]
                case [b"swap", key, value]:
                    return [b"%d" % self.board.swap(key.decode(), None, value)]
                case [b"swap", key, value, expected]:
                    return [b"%d" % self.board.swap(key.decode(), expected, value)]
                case [b"delete", prefix]:
                    self.board.delete(prefix.decode())
                    return []
                case [b"look", milliseconds, *keys]:
                    seconds = min(SLICE, int(milliseconds) / 1000)
                    missing, failed = self.board.look([key.decode() for key in keys], seconds)
                    failure = [] if failed is None else [failed]
                    return [b"%d" % len(missing), *(key.encode() for key in missing), *failure]
        except ValueError as error:
            raise BadFrame("a request holds something that is neither a number nor text") from error
        raise BadFrame("a frame is no request")
