"""Connections that others make to us: nobody is listened to before the proof that it knows the run's secret."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import time

from quorate.wire.frames import Reader
from quorate.wire.real.encryption import Encrypted, Encryption
from quorate.wire.real.shared import Lender

NONCE = 32
MAC = hashlib.sha256().digest_size
PROOF_SECONDS = 5.0
"""How long a connection may take to prove itself; the others of the run do so at once."""
MOST_UNPROVEN = 256
"""Connections that have not proved themselves, at a time; of more, the oldest are closed."""


def proof(token: bytes, nonce: bytes) -> bytes:
    """What a connection answers to `nonce`, which is never used twice."""
    return hmac.new(token, nonce, hashlib.sha256).digest()


class Arriving:
    """A connection that only the other side writes to: first its proof, then frames."""

    def __init__(self, sock: socket.socket, encryption: Encryption | None = None) -> None:
        self.nonce, self.since = secrets.token_bytes(NONCE), time.monotonic()
        sock.setblocking(False)
        self.sock = sock if encryption is None else encryption.accepted(sock)
        self.fd: int | None = None
        """Of the other side's shared memory."""
        self.lender: Lender | None = None
        self.reader: Reader | None = None
        """There once it has proved itself."""
        self.source: int | None = None
        self._proof = bytearray()
        self._is_greeted = False
        if encryption is None:
            self._greet()

    def prove(self, token: bytes) -> bool:
        """Read more of the proof; whether it is whole. Raises `OSError` where it is wrong, or none comes any more."""
        if not self._is_greeted:
            self._greet()
        more = self._introduction(MAC - len(self._proof))
        if not more:
            raise ConnectionResetError
        self._proof += more
        if len(self._proof) < MAC:
            return False
        if not hmac.compare_digest(bytes(self._proof), proof(token, self.nonce)):
            raise ConnectionRefusedError
        return True

    def _greet(self) -> None:
        if isinstance(self.sock, Encrypted):
            self.sock.do_handshake()
        self.sock.send(self.nonce)
        self._is_greeted = True

    def _introduction(self, most: int) -> bytes:
        """The next bytes of a proof, with which a descriptor may come."""
        if self.sock.family != socket.AF_UNIX:
            return self.sock.recv(most)
        more, descriptors, _, _ = socket.recv_fds(self.sock, most, 1)
        for fd in descriptors:
            if self.fd is None:
                self.fd = fd
            else:
                os.close(fd)
        return more

    def close(self) -> None:
        self.sock.close()
        if self.lender is not None:
            self.lender.settle()
            self.lender.close()
        elif self.fd is not None:
            os.close(self.fd)


class Lobby:
    """The connections that have not proved themselves yet."""

    def __init__(self) -> None:
        self._inside: dict[Arriving, None] = {}

    def __contains__(self, arriving: Arriving) -> bool:
        return arriving in self._inside

    def enter(self, arriving: Arriving) -> None:
        """Take in a connection that was accepted."""
        self._inside[arriving] = None

    def leave(self, arriving: Arriving) -> None:
        """It has proved itself, or is gone."""
        self._inside.pop(arriving, None)

    def overdue(self) -> list[Arriving]:
        """Those to be closed: they took too long, or there are too many; the oldest first."""
        limit = time.monotonic() - PROOF_SECONDS
        first = list(self._inside)[: max(0, len(self._inside) - MOST_UNPROVEN)]
        return [one for one in self._inside if one in first or one.since < limit]
