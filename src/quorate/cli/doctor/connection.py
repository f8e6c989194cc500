"""The process that `quorate doctor --hosts` lets `quorate run` start on each host, as a worker of a run would be.

Each finds its address as workers do, listens there, and measures in turn the way to every other one. What they find
goes over the board, which ssh carries; the first prints all of it in a line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import sys
import threading
import time
from contextlib import suppress
from itertools import permutations
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.between_hosts import address_here
from quorate.launch.worker.trial import facts, remove_run_folder
from quorate.wire.board import SocketBoard

SECONDS = 1.0
"""Duration of a measurement of bandwidth."""
FAR_SECONDS, SLOW_RATE = 5e-3, 1e9 / 8
"""A round trip, and bytes a second, from which on there is a warning."""
_TIMEOUT, _PATIENCE = 3.0, 60.0
"""Time limits of a connection, and of another host's part; importing torch is most of the latter."""
_PINGS = 50
_RARELY = "use a strategy that agrees rarely (local-sgd, diloco) or does not wait (eager-majority)"
_MTU = 14
"""IP_MTU of Linux: the largest packet on the way of a connection, as far as the kernel knows."""


def listen() -> dict[str, Any]:
    """Listen at the address at which the other hosts reach this one; return it, or why there is none."""
    try:
        address = address_here()
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except (ConfigurationError, OSError) as error:
        return {"address": fail(str(error), "see to /etc/hosts there, its interfaces and its routes (ip route)")}
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    return {"address": ok(address), "port": listener.getsockname()[1]}


def _answer(listener: socket.socket) -> None:
    """Echo single bytes. Count longer pieces, and send their number and seconds at the end."""
    while True:
        with listener.accept()[0] as connection, suppress(OSError):
            connection.settimeout(2 * SECONDS)
            count, begin = 0, time.monotonic()
            with suppress(TimeoutError):  # the bytes that have arrived by then count
                while data := connection.recv(1 << 20):
                    if count == 0 and len(data) == 1:
                        connection.sendall(data)
                        begin = time.monotonic()
                    elif (count := count + len(data)) and time.monotonic() > begin + 1.5 * SECONDS:
                        break
            connection.sendall(struct.pack("!Qd", count, time.monotonic() - begin))


def measure(address: str, port: int) -> dict[str, Finding]:
    """Judge the connection: whether the port is reached, and if so, the round trip and the bandwidth."""
    try:
        connection = socket.create_connection((address, port), timeout=_TIMEOUT)
    except OSError as error:
        refused = f"{address}:{port}: {error.strerror or error}"
        reason = f"dropped on the way to {address}:{port}" if isinstance(error, TimeoutError) else refused
        fix = f"let the firewalls between them pass TCP to {address}, at all ports from 1024 on"
        return {"ports": fail(reason, fix)}
    with connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips, mtu, data, count, seconds = [], None, bytes(1 << 18), 0, 1.0
        for _ in range(_PINGS):
            begin = time.perf_counter()
            connection.sendall(b"?")
            answers.read(1)
            trips.append(time.perf_counter() - begin)
        with suppress(OSError):  # another system, or IPv6
            mtu = connection.getsockopt(socket.IPPROTO_IP, _MTU) if sys.platform.startswith("linux") else None
        until = time.monotonic() + SECONDS
        connection.settimeout(0.2)
        while time.monotonic() < until:
            with suppress(TimeoutError):
                connection.send(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_TIMEOUT + SECONDS)
        with suppress(TimeoutError):  # its acknowledgements are lost as well
            count, seconds = struct.unpack("!Qd", answers.read(16))
    judged = {"latency": latency(statistics.median(trips)), "bandwidth": bandwidth(count / seconds, mtu)}
    return {"ports": ok("a free port is reached"), **judged}


def latency(seconds: float) -> Finding:
    """Judge the round trip of a byte."""
    fact = f"round trip of {1e3 * seconds:.3g} ms"
    return warn(fact, _RARELY) if seconds > FAR_SECONDS else ok(fact)


def bandwidth(rate: float, mtu: int | None = None) -> Finding:
    """Judge the bandwidth of one connection in one direction, in bytes per second, where single bytes arrive."""
    fact = f"{8e-6 * rate:.3g} Mbit/s" if 8 * rate < 1e9 else f"{8e-9 * rate:.3g} Gbit/s"
    if 8 * rate < 1e4:
        lost = f"packets {f'of {mtu} bytes ' if mtu else ''}are lost on the way, and small ones are not ({fact})"
        return fail(lost, f"on both: ip link set dev NAME mtu {min(1500, (mtu or 1500) - 80)}")
    return warn(fact, _RARELY) if rate < SLOW_RATE else ok(fact)


def main() -> None:
    """Take part as the rank that the launcher names."""
    board = SocketBoard(os.environ["QUORATE_BOARD"].removeprefix("unix:"))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        own = {**listen(), "facts": facts()}
    except (ImportError, OSError) as error:
        own = {**listen(), "error": str(error)}

    def read(keys: list[str]) -> list[Any]:
        board.wait(keys, _PATIENCE)
        return [json.loads(answer or b"null") for answer in board.get_all(keys)]

    board.set(f"doctor/{rank}", json.dumps(own).encode())
    hosts, ways = read([f"doctor/{peer}" for peer in range(size)]), []
    for source, target in permutations([peer for peer in range(size) if "port" in hosts[peer]], 2):
        key = f"doctor/{source}/{target}"
        if source == rank:
            board.set(key, json.dumps(measure(hosts[target]["address"][1], hosts[target]["port"])).encode())
        ways.append([source, target, read([key])[0]])
    if rank == 0:
        print(json.dumps({"hosts": hosts, "ways": ways}), flush=True)
    remove_run_folder()
    os._exit(0)


if __name__ == "__main__":
    main()
