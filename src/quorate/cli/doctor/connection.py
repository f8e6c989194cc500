"""The part of `quorate doctor --hosts` that runs on each host, started by its agent; the answer is a line of JSON.

`python -m quorate.cli.doctor.connection`, followed by

listen OTHER PORT         listens where others reach this host, and at PORT (0: any) as well
measure ADDRESS PORT MTU  rows about the way to a host that listens; MTU is that of its interface, or None
connect ADDRESS PORT      a row about a port
"""

from __future__ import annotations

import json
import os
import platform
import socket
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
_HEADERS = 28
"""Bytes of the headers of a datagram over IPv4."""
_RARELY = "use a strategy that agrees rarely (local-sgd, diloco) or does not wait (eager-majority)"
_MTU, _DISCOVER, _PROBE = 14, 10, 3
"""IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE: packets are not fragmented, whatever path MTU is known."""


def listen(other: str, port: str) -> dict[str, Any]:
    """Listen at the address from which this host reaches `other`."""
    about: dict[str, Any] = {"python": platform.python_version(), "torch": version_of("torch")}
    try:
        peer = socket.getaddrinfo(other, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return {**about, "error": f"{other} leads nowhere there: {error.strerror}"}
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            address, mtu = str(probe.getsockname()[0]), _mtu_of(probe)
        about |= {"address": address, "mtu": mtu, "port": _serve(address, 0)}
    except OSError as error:
        return {**about, "error": f"there is no way to {peer}: {error.strerror}"}
    about["taken"] = None
    try:
        _serve(address, int(port))
    except OSError as error:
        about["taken"] = error.strerror
    return about


def _serve(address: str, port: int) -> int:
    """Answer connections, and datagrams at the same port; return it."""
    listener = socket.create_server((address, port), backlog=16)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(listener.getsockname())

    def accept() -> None:
        while True:
            threading.Thread(target=_attend, args=(listener.accept()[0],), daemon=True).start()

    def echo() -> None:
        while True:
            datagram, source = datagrams.recvfrom(1 << 16)
            datagrams.sendto(struct.pack("!I", len(datagram)), source)

    for service in (accept, echo):
        threading.Thread(target=service, daemon=True).start()
    return int(listener.getsockname()[1])


def _attend(connection: socket.socket) -> None:
    """Answer each `?` with the time of day; after `#` count bytes, and send their number and seconds."""
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (request := connection.recv(1)) == b"?":
            connection.sendall(struct.pack("!d", time.time()))
        begin, count = time.monotonic(), 0
        connection.settimeout(2 * SECONDS)
        with suppress(OSError):  # what has arrived by then counts
            while request and time.monotonic() < begin + 1.5 * SECONDS and (size := len(connection.recv(1 << 20))):
                count += size
        connection.sendall(struct.pack("!Qd", count, time.monotonic() - begin))


def connect(address: str, port: str) -> dict[str, Any]:
    """Judge whether a port is reached."""
    error = None
    try:
        socket.create_connection((address, int(port)), timeout=_TIMEOUT).close()
    except TimeoutError:
        error = f"dropped on the way to {address}:{port}"
    except OSError as refused:
        error = f"{address}:{port}: {refused.strerror or refused}"
    fix = f"let the firewalls between them pass TCP to {address}, at all ports from 1024 on"
    return {"ports": ok("a free port is reached") if error is None else fail(error, fix)}


def measure(address: str, port: str, mtu: str) -> dict[str, Any]:
    """Judge the way, and return by how many seconds the other's clock is ahead, give or take as `clock`."""
    rows = connect(address, port)
    if rows["ports"].level != "OK":
        return rows
    where = (address, int(port))
    seconds, *clock = _pings(where)
    rows |= {"latency": latency(seconds), "bandwidth": bandwidth(_rate(where))}
    return {**rows, "mtu": mtus(*_sizes_that_arrive(where), int(mtu) if mtu.isdigit() else None), "clock": clock}


def latency(seconds: float) -> Finding:
    """Judge the round trip of a byte."""
    fact = f"{1e3 * seconds:.3g} ms to and fro"
    return warn(fact, _RARELY) if seconds > FAR_SECONDS else ok(fact)


def bandwidth(rate: float) -> Finding:
    """Judge the bandwidth of one connection in one direction, in bytes per second."""
    fact = f"{8e-6 * rate:.3g} Mbit/s" if 8 * rate < 1e9 else f"{8e-9 * rate:.3g} Gbit/s"
    if 8 * rate < 1e4:
        return fail(f"next to nothing comes through ({fact})", "see the row mtu, and what limits the way")
    return warn(fact, _RARELY) if rate < SLOW_RATE else ok(fact)


def mtus(mtu: int | None, small: bool, large: bool, other: int | None) -> Finding:
    """Judge the MTUs at both ends, and whether a small datagram and the largest arrive."""
    if mtu is None:
        return ok("not known on this system")
    if small and not large:
        fix = f"on both: ip link set dev NAME mtu {min(1500, mtu - 80)}"
        return fail(f"packets of {mtu} bytes are lost on the way, and small ones are not", fix)
    if other is not None and mtu != other:
        return warn(f"{mtu} at one end and {other} at the other", "give both interfaces the same MTU")
    return ok(f"packets of {mtu} bytes come through" if small else f"{mtu}; UDP does not come through")


def _pings(where: tuple[str, int]) -> tuple[float, float, float]:
    """Return the median round trip, and by how much the other's clock is ahead, give or take: all in seconds."""
    pings = []
    with socket.create_connection(where, timeout=_TIMEOUT) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            sent, begin = time.time(), time.perf_counter()
            connection.sendall(b"?")
            (theirs,) = struct.unpack("!d", answers.read(8))
            seconds = time.perf_counter() - begin
            pings.append((seconds, theirs - sent - seconds / 2))
    shortest, ahead = min(pings)
    return sorted(pings)[_PINGS // 2][0], ahead, shortest / 2


def _rate(where: tuple[str, int]) -> float:
    """Return the bytes per second that arrive, measured for `SECONDS`."""
    data = bytes(1 << 18)
    with socket.create_connection(where, timeout=_TIMEOUT) as connection:
        until = time.monotonic() + SECONDS
        connection.sendall(b"#")
        connection.settimeout(0.2)
        while time.monotonic() < until:
            with suppress(TimeoutError):
                connection.send(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_TIMEOUT + SECONDS)
        with connection.makefile("rb") as answers:
            count, seconds = struct.unpack("!Qd", answers.read(16))
        return float(count / seconds)


def _mtu_of(connected: socket.socket) -> int | None:
    return connected.getsockopt(socket.IPPROTO_IP, _MTU) if sys.platform.startswith("linux") else None


def _sizes_that_arrive(where: tuple[str, int]) -> tuple[int | None, bool, bool]:
    """Return the MTU, and whether a datagram of one byte and one of this size arrive."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.3)
        probe.connect(where)
        mtu = _mtu_of(probe)
        if mtu is None:
            return None, False, False
        probe.setsockopt(socket.IPPROTO_IP, _DISCOVER, _PROBE)
        return mtu, _arrives(probe, 1), _arrives(probe, min(mtu, 65535) - _HEADERS)


def _arrives(probe: socket.socket, size: int) -> bool:
    for _ in range(4):
        with suppress(OSError):
            probe.send(bytes(size))
            while struct.unpack("!I", probe.recv(4))[0] != size:
                pass  # the echo of an earlier datagram
            return True
    return False


if __name__ == "__main__":
    does: dict[str, Callable[..., dict[str, Any]]] = {each.__name__: each for each in (listen, measure, connect)}
    print(json.dumps(does[sys.argv[1]](*sys.argv[2:])), flush=True)
    if sys.argv[1] == "listen":
        threading.Event().wait()
    os._exit(0)
