"""Our connection to one peer, for short messages, which only we write to; it never waits."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from contextlib import suppress

from quorate.wire.real.arriving import NONCE, proof
from quorate.wire.real.encryption import Encrypted, Encryption, check, split

_MOST_BYTES = 1 << 22
"""That wait in one connection; further messages are lost."""


class Line:
    """One; `wants` says what to wait for, before `read` and `write`."""

    def __init__(self, peer: int, address: str, key: bytes, encryption: Encryption | None) -> None:
        self.peer, self.since, self.is_open = peer, time.monotonic(), False
        self._key, self._nonce, self._address, self._encryption = key, b"", address, encryption
        self._out = bytearray()
        host, _, port = split(address)[1].rpartition(":")
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failed = self.sock.connect_ex((host, int(port)))
        if failed not in (0, errno.EINPROGRESS):
            self.sock.close()
            raise OSError(failed, "cannot connect")
        self.waits_for = self.wants

    @property
    def wants(self) -> int:
        """What to wait for."""
        if self._encryption is not None and not isinstance(self.sock, Encrypted):
            return selectors.EVENT_WRITE  # who is called waits for the first word of a handshake
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.is_open and self._out else 0)

    def add(self, data: bytes) -> None:
        """Put it on its way; nothing is sent yet."""
        if len(self._out) + len(data) <= _MOST_BYTES:
            self._out += data

    def read(self) -> None:
        """What the other side says first, and then never more. Raises `OSError` where it has ended."""
        if self._encryption is not None:
            self._shake_hands(self._encryption)
        more = self.sock.recv(NONCE if self.is_open else NONCE - len(self._nonce))
        if not more or self.is_open:
            raise ConnectionResetError
        self._nonce += more
        if len(self._nonce) == NONCE:
            self.sock.send(proof(self._key, self._nonce))  # a new connection takes so much
            self.is_open = True

    def _shake_hands(self, encryption: Encryption) -> None:
        if not isinstance(self.sock, Encrypted):
            failed = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise OSError(failed, "cannot connect")
            self.sock = encryption.made(self.sock)
        if self.sock.version() is None:
            self.sock.do_handshake()
            check(self.sock, self._address)

    def write(self) -> None:
        """As much as the system takes. Raises `OSError` where the connection has ended."""
        with suppress(BlockingIOError):
            while self._out:
                del self._out[: self.sock.send(self._out)]
