"""By which congestion control sums between hosts are sent, where nobody has chosen one."""

from __future__ import annotations

import errno
import socket
import struct
from typing import Any

import pytest

from quorate.wire.real.links import take_cubic_nearby

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="Linux alone lets it be chosen")


class Connection:
    """What is asked of a socket."""

    def __init__(self, usual: bytes, microseconds: int, refuses: bool = False) -> None:
        self._usual, self._microseconds, self._refuses = usual, microseconds, refuses
        self.chosen: list[bytes] = []

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        """As of a connection to a host so far away."""
        assert level == socket.IPPROTO_TCP
        if name == socket.TCP_CONGESTION:
            return self._usual.ljust(size, b"\0")
        assert name == socket.TCP_INFO
        return bytes(68) + struct.pack("I", self._microseconds)

    def setsockopt(self, level: int, name: int, value: bytes) -> None:
        """As a system that may not have it."""
        if self._refuses:
            raise OSError(errno.ENOENT, "No such file or directory")
        self.chosen.append(value)


@pytest.mark.parametrize(
    ("usual", "microseconds", "chosen"),
    [
        (b"bbr", 300, [b"cubic"]),
        (b"bbr", 40_000, []),
        (b"cubic", 300, []),
        (b"reno", 300, []),
        (b"dctcp", 300, []),
    ],
)
def test_bbr_gives_way_to_cubic_nearby(usual: bytes, microseconds: int, chosen: list[bytes]) -> None:
    connection: Any = Connection(usual, microseconds)
    take_cubic_nearby(connection)
    assert connection.chosen == chosen


def test_a_system_without_cubic() -> None:
    connection: Any = Connection(b"bbr", 300, refuses=True)
    take_cubic_nearby(connection)
    assert connection.chosen == []


def test_the_time_of_a_round_trip_is_where_it_is_looked_for() -> None:
    """Of a real connection on this machine: far less than it takes to any other."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        server.accept()[0].close()
        usual = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        (microseconds,) = struct.unpack("68xI", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 72))
        assert 0 < microseconds < 5000
        take_cubic_nearby(client)
        now = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        assert now == usual or (usual, now) == (b"bbr", b"cubic")
