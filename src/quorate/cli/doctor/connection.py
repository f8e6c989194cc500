"""The part of `quorate doctor --hosts` that runs on each host, started by its agent; the answer is a line of JSON.

`python -m quorate.cli.doctor.connection`, followed by

listen OTHER          listens where others reach this host
measure ADDRESS PORT  rows about the connection to a host that listens
"""

from __future__ import annotations

import json
import os
import platform
import socket
import socketserver
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.installed import version_of

SECONDS = 1.0
"""Duration of a measurement of bandwidth."""
FAR_SECONDS, SLOW_RATE = 5e-3, 1e9 / 8
"""A round trip, and bytes a second, from which on there is a warning."""
_TIMEOUT = 3.0
_PINGS = 50
_RARELY = "use a strategy that agrees rarely (local-sgd, diloco) or does not wait (eager-majority)"
_MTU = 14
"""IP_MTU of Linux: the largest packet on the way of a connection, as far as the kernel knows."""


class _Answers(socketserver.BaseRequestHandler):
    """Answers each `?`; after `#` counts bytes, and sends their number and seconds."""

    def handle(self) -> None:
        connection, count = self.request, 0
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (request := connection.recv(1)) == b"?":
                connection.sendall(b"!")
            begin = time.monotonic()
            connection.settimeout(2 * SECONDS)
            with suppress(OSError):  # the bytes that have arrived by then count
                while request and time.monotonic() < begin + 1.5 * SECONDS and (size := len(connection.recv(1 << 20))):
                    count += size
            connection.sendall(struct.pack("!Qd", count, time.monotonic() - begin))


def listen(other: str) -> dict[str, Any]:
    """Listen at the address from which this host reaches `other`."""
    about: dict[str, Any] = {"python": platform.python_version(), "torch": version_of("torch")}
    try:
        peer = socket.getaddrinfo(other, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))  # nothing is sent
            address = str(probe.getsockname()[0])
        server = socketserver.ThreadingTCPServer((address, 0), _Answers)
    except OSError as error:
        return {**about, "error": f"{other} leads nowhere there: {error.strerror}"}
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {**about, "address": address, "port": server.server_address[1]}


def measure(address: str, port: str) -> dict[str, Any]:
    """Judge the connection: whether the port is reached, and if so, the round trip and the bandwidth."""
    try:
        socket.create_connection((address, int(port)), timeout=_TIMEOUT).close()
    except OSError as error:
        reason = f"{address}:{port}: {error.strerror or error}"
        if isinstance(error, TimeoutError):
            reason = f"dropped on the way to {address}:{port}"
        fix = f"let the firewalls between them pass TCP to {address}, at all ports from 1024 on"
        return {"ports": fail(reason, fix)}
    where = (address, int(port))
    return {
        "ports": ok("a free port is reached"),
        "latency": latency(_round_trip(where)),
        "bandwidth": bandwidth(*_rate(where)),
    }


def latency(seconds: float) -> Finding:
    """Judge the round trip of a byte."""
    fact = f"round trip of {1e3 * seconds:.3g} ms"
    return warn(fact, _RARELY) if seconds > FAR_SECONDS else ok(fact)


def bandwidth(rate: float, mtu: int | None = None) -> Finding:
    """Judge the bandwidth of one connection in one direction, in bytes per second, where single bytes arrive."""
    fact = f"{8e-6 * rate:.3g} Mbit/s" if 8 * rate < 1e9 else f"{8e-9 * rate:.3g} Gbit/s"
    if 8 * rate < 1e4:
        size = f"of {mtu} bytes " if mtu else ""
        fix = f"on both: ip link set dev NAME mtu {min(1500, (mtu or 1500) - 80)}"
        return fail(f"packets {size}are lost on the way, and small ones are not ({fact})", fix)
    return warn(fact, _RARELY) if rate < SLOW_RATE else ok(fact)


def _round_trip(where: tuple[str, int]) -> float:
    """Return the median seconds of a round trip."""
    seconds = []
    with socket.create_connection(where, timeout=_TIMEOUT) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            begin = time.perf_counter()
            connection.sendall(b"?")
            answers.read(1)
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _rate(where: tuple[str, int]) -> tuple[float, int | None]:
    """Return the bytes per second that arrive, measured for `SECONDS`, and the largest packet where it is known."""
    data = bytes(1 << 18)
    with socket.create_connection(where, timeout=_TIMEOUT) as connection, connection.makefile("rb") as answers:
        until = time.monotonic() + SECONDS
        mtu = connection.getsockopt(socket.IPPROTO_IP, _MTU) if sys.platform.startswith("linux") else None
        connection.sendall(b"#")
        connection.settimeout(0.2)
        while time.monotonic() < until:
            with suppress(TimeoutError):
                connection.send(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_TIMEOUT + SECONDS)
        count, seconds = struct.unpack("!Qd", answers.read(16))
        return float(count / seconds), mtu


if __name__ == "__main__":
    does: dict[str, Callable[..., dict[str, Any]]] = {each.__name__: each for each in (listen, measure)}
    print(json.dumps(does[sys.argv[1]](*sys.argv[2:])), flush=True)
    if sys.argv[1] == "listen":
        threading.Event().wait()
    os._exit(0)
