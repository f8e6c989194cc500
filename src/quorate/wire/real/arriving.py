"""Incoming connections: none is read from before the proof that the peer knows the run's secret."""

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
"""Seconds that a connection may take to prove itself; workers of the run do so at once."""
MOST_UNPROVEN = 256
"""Most connections at a time that have not proved themselves; the oldest of more are closed."""


def proof(token: bytes, nonce: bytes) -> bytes:
    """Return the answer to `nonce`, which is never used twice."""
    return hmac.new(token, nonce, hashlib.sha256).digest()


class Arriving:
    """A connection that only the other side writes to: first its proof, then frames."""

    def __init__(self, sock: socket.socket, encryption: Encryption | None = None) -> None:
        self.nonce, self.since = secrets.token_bytes(NONCE), time.monotonic()
        sock.setblocking(False)
        self.sock = sock if encryption is None else encryption.accepted(sock)
        self.fd: int | None = None
        """File descriptor of the other side's shared memory."""
        self.lender: Lender | None = None
        self.reader: Reader | None = None
        """Set once the connection has proved itself."""
        self.source: int | None = None
        self._proof = bytearray()
        self._is_greeted = False
        if encryption is None:
            self._greet()

    def prove(self, token: bytes) -> bool:
        """Read more of the proof; return whether it is complete. Raises `OSError` where it is wrong, or has ended."""
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
        """Read the next bytes of a proof, and a descriptor that may come with them."""
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
            self.lender.report_releases()
            self.lender.close()
        elif self.fd is not None:
            os.close(self.fd)


class Lobby:
    """The connections that have not proved themselves."""

    def __init__(self) -> None:
        self.inside: dict[Arriving, None] = {}

    def __contains__(self, arriving: Arriving) -> bool:
        return arriving in self.inside

    def enter(self, arriving: Arriving) -> None:
        """Add an accepted connection."""
        self.inside[arriving] = None

    def leave(self, arriving: Arriving) -> None:
        """Remove a connection that has proved itself, or is closed."""
        self.inside.pop(arriving, None)

    def overdue(self) -> list[Arriving]:
        """Return the connections to be closed: they took too long, or there are too many; the oldest first."""
        limit = time.monotonic() - PROOF_SECONDS
        first = list(self.inside)[: max(0, len(self.inside) - MOST_UNPROVEN)]
        return [arriving for arriving in self.inside if arriving in first or arriving.since < limit]
