"""`quorate doctor --hosts`: the requirements of training on several hosts, checked from each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from quorate.cli.doctor import judged
from quorate.cli.doctor.far import ANSWERS_WITHIN, BEGINS_WITHIN, Far
from quorate.cli.doctor.findings import Finding, fail
from quorate.cli.doctor.network import TORCHRUN_PORT
from quorate.core.errors import ConfigurationError

_PACKAGES = ("quorate", "torch")
_TRIPS = 10
_PINGS = 50
_USUAL_MTU = 1500


@dataclass
class _Host:
    far: Far
    about: judged.About
    address: str = ""
    mtu: int | None = None
    port: int = 0
    day: judged.Day = field(default_factory=lambda: judged.Day(0.0, 0.0))

    @property
    def name(self) -> str:
        return self.far.name


def hosts_in(text: str) -> list[str]:
    """Return the hosts of `--hosts a,b`. Raises `ConfigurationError` for fewer than two, or a repeated one."""
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or not all(names) or any(name.startswith("-") for name in names) or len(set(names)) < len(names):
        raise ConfigurationError(f"--hosts {text}: name two hosts or more, each once, with commas between them")
    return names


def rows_of(hosts: Sequence[str]) -> list[str]:
    """Return the names of all rows, in order; rows that need a failed one are skipped."""
    single = [f"host {name}" for name in hosts]
    pairs = [f"{row} {source} > {target}" for source, target in permutations(hosts, 2) for row in judged.BETWEEN]
    return [*single, "versions", "clocks of hosts", *(f"address {name}" for name in hosts), *pairs, "master port"]


def findings(hosts: Sequence[str]) -> Iterator[Finding]:
    """Yield each finding as soon as it is known."""
    with ExitStack() as stack:
        reached = []
        for name in hosts:
            host, finding = _reached(name, stack)
            yield finding
            reached += [] if host is None else [host]
        if len(reached) < 2:
            return
        yield judged.judge_versions([host.about for host in reached])
        for host in reached:
            host.day = _day_of(host.far)
        yield judged.judge_days([(host.name, host.day) for host in reached])
        located = []
        for host in reached:
            finding = _located(host, reached)
            yield finding
            located += [host] if host.port else []
        for source, target in permutations(located, 2):
            yield from _between(source, target)
        if located and located[0] is reached[0] and len(located) > 1:
            yield _master_port(located)


def _reached(name: str, stack: ExitStack) -> tuple[_Host | None, Finding]:
    try:
        far = Far(name)
        stack.callback(far.close)
        answer = far.ask("about", BEGINS_WITHIN, packages=_PACKAGES)
    except OSError as error:
        return None, judged.judge_reach(name, str(error))
    about = judged.About(name, answer["python"], answer["executable"], answer["versions"])
    return _Host(far, about), judged.judge_reach(name, about)


def _day_of(far: Far) -> judged.Day:
    """Return how far a host's time of day is ahead of this machine's: the shortest of several round trips counts."""
    best = judged.Day(0.0, float("inf"))
    for _ in range(_TRIPS):
        sent = time.time()
        there = float(far.ask("day")["day"])
        received = time.time()
        if (received - sent) / 2 < best.uncertainty:
            best = judged.Day(there - (sent + received) / 2, (received - sent) / 2)
    return best


def _located(host: _Host, all_of: Sequence[_Host]) -> Finding:
    """Find the address of a host for the others: as in workers, the one from which it reaches the first host."""
    other = next(candidate for candidate in all_of if candidate is not host) if host is all_of[0] else all_of[0]
    row, name = f"address {host.name}", other.name.rpartition("@")[2]
    try:
        theirs = other.address or str(host.far.ask("resolve", name=name)["address"])
    except OSError as error:
        return fail(row, f"{name} leads nowhere there ({error})", f"add a line for {name} to its /etc/hosts")
    try:
        route = host.far.ask("towards", address=theirs)
        host.address, host.mtu = str(route["address"]), route["mtu"]
        if not host.address.startswith("127."):
            host.port = int(host.far.ask("listen", address=host.address, port=0)["port"])
    except OSError as error:
        return fail(row, f"there is no way to {theirs} ({error})", "see to its interfaces and routes: ip route")
    return judged.judge_address(host.name, host.address, route["interface"], other.name)


def _between(source: _Host, target: _Host) -> Iterator[Finding]:
    way = f"{source.name} > {target.name}"

    def ask(do: str, **more: object) -> dict[str, Any]:
        return source.far.ask(do, ANSWERS_WITHIN, address=target.address, port=target.port, **more)

    connection = ask("connect")
    yield judged.judge_connection(way, f"{target.address}:{target.port}", connection.get("error"))
    if "error" in connection:
        return
    measured: dict[str, Callable[[], Finding]] = {
        "latency": lambda: judged.judge_latency(way, ask("ping", times=_PINGS)["seconds"]),
        "bandwidth": lambda: judged.judge_bandwidth(way, ask("fill")["rate"]),
        "mtu": lambda: judged.judge_mtu(way, (source.mtu, target.mtu), ask("datagrams", mtu=source.mtu or _USUAL_MTU)),
    }
    for row, measure in measured.items():
        try:
            finding = measure()
        except OSError as error:
            finding = fail(f"{row} {way}", f"could not be measured: {error}", "see the error; then ask again")
        yield finding


def _master_port(hosts: Sequence[_Host]) -> Finding:
    first, *others = hosts
    port = os.environ.get("MASTER_PORT", "")
    number = int(port) if port.isdecimal() and 0 < int(port) < 65536 else TORCHRUN_PORT
    try:
        first.far.ask("listen", address=first.address, port=number)
    except OSError as error:
        return judged.judge_master_port(first.name, number, str(error), {})
    errors = {host.name: host.far.ask("connect", address=first.address, port=number).get("error") for host in others}
    return judged.judge_master_port(first.name, number, None, errors)
