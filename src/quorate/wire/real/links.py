"""Outgoing connections of a mailbox, which only this side writes to, and their messages."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from enum import Enum

from quorate.wire.boxes import Gate
from quorate.wire.real.arriving import NONCE, proof
from quorate.wire.real.encryption import Encryption, Impostor, check, split

_CONNECT_SECONDS = 10.0
_NEAR_MICROSECONDS = 5000
"""Longest round trip of hosts whose sums do not use BBR."""
_ROUND_TRIP = struct.Struct("68xI")
"""The round trip, in microseconds, in Linux's `tcp_info`."""


class Lane(Enum):
    """Between hosts each lane has a connection of its own, whose messages do not wait behind those of others."""

    USUAL = "usual"
    URGENT = "urgent"
    SUMS = "sums"
    """Parts of sums, which all hosts send to each other at the same time."""


class Unreachable(ConnectionError):
    """There is no answer at present: the host, or the route, is down."""


class Outgoing:
    """One message under way; `sent` when the system has accepted all of it, `lost` when the connection broke."""

    def __init__(self, pieces: list[memoryview]) -> None:
        self.pieces = deque(pieces)
        self.sent = Gate()
        self.lost = False
        self.why = ""
        """The reason of the loss."""

    def end(self, *, lost: bool = False, why: str = "") -> None:
        """Send no more of the message; `lost`: it is incomplete."""
        self.lost, self.why = lost, why
        self.pieces.clear()
        self.sent.open()


class Link:
    """This worker's connection to one peer; `sock` is None while it is being made."""

    def __init__(self, sock: socket.socket | None) -> None:
        self.sock = sock
        self.is_here = sock is not None and sock.family == socket.AF_UNIX
        """Whether the peer is on this host."""
        self.lock = threading.Lock()
        self.queue: deque[Outgoing] = deque()
        self.broken = False
        self.why = "closed by the other side"
        """The reason of the break."""

    def push(self) -> bool:
        """Write as much as the system accepts now; return whether bytes are left."""
        with self.lock:
            if self.sock is None:
                return False
            while self.queue:
                first = self.queue[0]
                while first.pieces:
                    try:
                        count = self.sock.send(first.pieces[0])
                    except BlockingIOError:
                        return True
                    except OSError:
                        self.end()
                        return False
                    rest = first.pieces[0][count:]
                    if len(rest):
                        first.pieces[0] = rest
                    else:
                        first.pieces.popleft()
                self.queue.popleft().end()
            return False

    def end(self) -> None:
        """Break the link: all unsent messages are lost."""
        self.broken = True
        while self.queue:
            self.queue.popleft().end(lost=True, why=self.why)


def connect(
    address: str,
    token: bytes,
    fd: int | None = None,
    encryption: Encryption | None = None,
    congestion: str = "",
    lane: Lane = Lane.USUAL,
) -> socket.socket:
    """Connect to the mailbox at `address`, prove that this worker knows `token`, and send `fd` with the proof.

    Over TCP it uses the `congestion` control of that name; empty: the system's default, but for sums
    (`take_cubic_nearby`).

    Raises `ConnectionError`; `Impostor` where another certificate is shown than is expected.
    """
    kind, _, where = address.partition(":")
    sock = None
    try:
        if kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(_CONNECT_SECONDS)
            sock.connect(where)
        else:
            host, _, port = split(address)[1].rpartition(":")
            sock = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if congestion:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            elif lane is Lane.SUMS:
                take_cubic_nearby(sock)
            if encryption is not None:
                sock = encryption.made(sock)
                sock.do_handshake()
                check(sock, address)
        nonce = b""
        while len(nonce) < NONCE:
            more = sock.recv(NONCE - len(nonce))
            if not more:
                raise ConnectionResetError("the connection closed during the handshake")
            nonce += more
        if fd is not None:
            socket.send_fds(sock, [proof(token, nonce)], [fd])
        else:
            sock.sendall(proof(token, nonce))
    except OSError as error:
        if sock is not None:
            sock.close()
        if isinstance(error, Impostor):
            raise
        kind_of_error = ConnectionError if isinstance(error, ConnectionError) else Unreachable
        raise kind_of_error(f"cannot reach the worker at {address}: {error}") from error
    sock.setblocking(False)
    return sock


def take_cubic_nearby(sock: socket.socket) -> None:
    """Use CUBIC to a host nearby, for sums, where the system would use BBR, and has CUBIC.

    Parts of sums are many short transfers at the same time, and BBR is slow to use the bandwidth that others leave.
    CUBIC is not for rounds, whose short messages would wait in the queues that it fills, nor for lossy long routes.
    """
    if not hasattr(socket, "TCP_CONGESTION"):
        return
    with suppress(OSError, struct.error):
        usual = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        (microseconds,) = _ROUND_TRIP.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size))
        if usual.startswith(b"bbr") and microseconds < _NEAR_MICROSECONDS:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
