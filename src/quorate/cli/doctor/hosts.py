"""`quorate doctor --hosts`: the requirements of training on several hosts, checked from each of them."""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from quorate.cli.doctor import far_end
from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.cli.doctor.network import TORCHRUN_PORT
from quorate.cli.doctor.software import OLDEST_PYTHON
from quorate.cli.hosts import ssh_here
from quorate.core.errors import ConfigurationError

_PACKAGES = ("quorate", "torch")
_TRIPS = 10
_PINGS = 50
_USUAL_MTU = 1500

BEGINS_WITHIN, ANSWERS_WITHIN = 30.0, 15.0
"""Seconds."""
_PROGRAM = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("{old} %d.%d.%d, and Quorate needs {oldest} or later" % sys.version_info[:3])
exec(compile(sys.stdin.buffer.read({size}), 'far_end', 'exec'))
"""
"""Every Python understands it, however old."""
_HERE = ("localhost", "127.0.0.1")

BETWEEN = ("ports", "latency", "bandwidth", "mtu")
"""The rows of each way from one host to another."""
FAR_SECONDS, SLOW_RATE = 5e-3, 1e9 / 8
"""A round trip, and bytes a second, from which on there is something to mind."""
OFF_SECONDS = 1.0
OLD_PYTHON = "its Python is"
"""How the sentence begins of a host whose Python is too old to be asked."""
_NEWER_PYTHON = f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later there, at the same path as here"
_RARELY = (
    "take a strategy that agrees rarely, such as local-sgd or diloco, or one that does not wait, such as eager-majority"
)


@dataclass
class _Host:
    far: Far
    about: About
    address: str = ""
    mtu: int | None = None
    port: int = 0
    day: Day = field(default_factory=lambda: Day(0.0, 0.0))

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
    pairs = [f"{row} {source} > {target}" for source, target in permutations(hosts, 2) for row in BETWEEN]
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
        yield judge_versions([host.about for host in reached])
        for host in reached:
            host.day = _day_of(host.far)
        yield judge_days([(host.name, host.day) for host in reached])
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
        return None, judge_reach(name, str(error))
    about = About(name, answer["python"], answer["executable"], answer["versions"])
    return _Host(far, about), judge_reach(name, about)


def _day_of(far: Far) -> Day:
    """Return how far a host's time of day is ahead of this machine's: the shortest of several round trips counts."""
    best = Day(0.0, float("inf"))
    for _ in range(_TRIPS):
        sent = time.time()
        there = float(far.ask("day")["day"])
        received = time.time()
        if (received - sent) / 2 < best.uncertainty:
            best = Day(there - (sent + received) / 2, (received - sent) / 2)
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
    return judge_address(host.name, host.address, route["interface"], other.name)


def _between(source: _Host, target: _Host) -> Iterator[Finding]:
    way = f"{source.name} > {target.name}"

    def ask(do: str, **more: object) -> dict[str, Any]:
        return source.far.ask(do, ANSWERS_WITHIN, address=target.address, port=target.port, **more)

    connection = ask("connect")
    yield judge_connection(way, f"{target.address}:{target.port}", connection.get("error"))
    if "error" in connection:
        return
    measured: dict[str, Callable[[], Finding]] = {
        "latency": lambda: judge_latency(way, ask("ping", times=_PINGS)["seconds"]),
        "bandwidth": lambda: judge_bandwidth(way, ask("fill")["rate"]),
        "mtu": lambda: judge_mtu(way, (source.mtu, target.mtu), ask("datagrams", mtu=source.mtu or _USUAL_MTU)),
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
        return judge_master_port(first.name, number, str(error), {})
    errors = {host.name: host.far.ask("connect", address=first.address, port=number).get("error") for host in others}
    return judge_master_port(first.name, number, None, errors)


def words_on(host: str, command: str) -> list[str]:
    """Return the words that run a shell command on a host: over ssh (or QUORATE_SSH), except on this one."""
    if host in (*_HERE, socket.gethostname()):
        return ["sh", "-c", command]
    ssh = shlex.split(ssh_here())
    return [*ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, shlex.join(["sh", "-c", command])]


class Far:
    """A connection to `far_end` on one host. Raises `OSError`, with a reason, where the host cannot be asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = Path(far_end.__file__).read_bytes()
        program = _PROGRAM.format(size=len(text), old=OLD_PYTHON, oldest=".".join(map(str, OLDEST_PYTHON)))
        here = shlex.quote(sys.executable)
        command = f"p={here}; [ -x $p ] || p=python3; exec $p -u -c {shlex.quote(program)}"
        self._process = subprocess.Popen(
            words_on(name, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._unread, self._unsent = b"", text

    def ask(self, do: str, within: float = ANSWERS_WITHIN, **arguments: object) -> dict[str, Any]:
        """Ask `far_end`; return its answer. Raises `OSError` for a failure, or after `within` seconds."""
        begun, self._unsent = self._unsent, b""
        self._write(begun + json.dumps({"do": do, **arguments}).encode() + b"\n")
        until = time.monotonic() + within
        answer: Any = None
        while not isinstance(answer, dict):  # a shell may greet first
            with suppress(ValueError):
                answer = json.loads(self._line(until, within))
        if "failed" in answer:
            raise OSError(str(answer["failed"]))
        return answer

    def close(self) -> None:
        """Close the connection and end the process."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[self._process.stdin.write(remaining) or 0 :]
        except BrokenPipeError:
            raise OSError(self._why()) from None

    def _line(self, until: float, within: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise OSError(f"no answer within {within:g} s")
            more = self._process.stdout.read(1 << 16)
            if not more:
                raise OSError(self._why())
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _why(self) -> str:
        assert self._process.stderr is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        said = b""
        while select.select([self._process.stderr], [], [], 0.1)[0]:
            more = self._process.stderr.read(1 << 16)
            if not more:
                break
            said += more
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"it ended with status {self._process.poll()}"


class About(NamedTuple):
    """The packages installed on one host."""

    name: str
    python: str
    executable: str
    versions: Mapping[str, str | None]


class Day(NamedTuple):
    """The seconds by which a host's time of day is ahead of this machine's, and their uncertainty."""

    ahead: float
    uncertainty: float


def judge_reach(name: str, answer: About | str) -> Finding:
    """Judge `answer`: the packages of a host, or why it could not be asked."""
    row = f"host {name}"
    if isinstance(answer, str) and answer.startswith(OLD_PYTHON):
        return fail(row, answer, _NEWER_PYTHON)
    if isinstance(answer, str):
        fix = f"see that this works without a password: ssh {name} python3 --version"
        return fail(row, f"could not be asked over ssh: {answer}", fix)
    return ok(row, f"answers; its Python is {answer.executable}")


def judge_versions(all_of: Sequence[About]) -> Finding:
    """Judge whether the hosts have the same versions, and all packages."""
    old = [host for host in all_of if tuple(int(part) for part in host.python.split(".")[:2]) < OLDEST_PYTHON]
    if old:
        sentence = "; ".join(f"Python is {host.python} on {host.name}" for host in old)
        return fail("versions", sentence, _NEWER_PYTHON)
    missing = [(host, package) for host in all_of for package, version in host.versions.items() if version is None]
    if missing:
        sentence = "; ".join(
            f"{package} is missing on {host.name} (for {host.executable})" for host, package in missing
        )
        return fail("versions", sentence, "install the same versions, at the same place, on every host")
    for package in all_of[0].versions:
        versions = {host.name: _public(host.versions[package] or "") for host in all_of}
        if len(set(versions.values())) > 1:
            sentence = f"{package} differs: {_each(versions)}"
            return fail("versions", sentence, f"install the same version of {package} on every host")
    pythons = {host.name: ".".join(host.python.split(".")[:2]) for host in all_of}
    same = ", ".join(f"{package} {version}" for package, version in all_of[0].versions.items())
    if len(set(pythons.values())) > 1:
        return warn("versions", f"{same}; Python differs: {_each(pythons)}", "install the same Python on every host")
    return ok("versions", f"{same}, Python {pythons[all_of[0].name]}, the same on all")


def judge_days(days: Sequence[tuple[str, Day]]) -> Finding:
    """Judge times of day: differences confuse logs and certificates; records use other clocks."""
    row = "clocks of hosts"
    first, last = min(days, key=lambda host: host[1].ahead), max(days, key=lambda host: host[1].ahead)
    apart, wrong = last[1].ahead - first[1].ahead, first[1].uncertainty + last[1].uncertainty
    if apart - wrong > OFF_SECONDS:
        sentence = f"{last[0]} is {apart:.1f} s ahead of {first[0]}"
        return warn(row, sentence, "let all of them take the time of day from a server: timedatectl set-ntp true")
    if apart > wrong:
        return ok(row, f"{last[0]} is {1e3 * apart:.3g} ms ahead of {first[0]}, give or take {1e3 * wrong:.2g} ms")
    return ok(row, f"the same on all, to within {1e3 * wrong:.2g} ms")


def judge_address(name: str, address: str, interface: str | None, other: str) -> Finding:
    """Judge the address at which other hosts reach a host."""
    row = f"address {name}"
    if address.startswith("127."):
        fix = f"let {other} lead to its own address in /etc/hosts there, or name it by its address"
        return fail(row, f"{other} leads to {address} there, which is {name} itself", fix)
    return ok(row, address + (f" ({interface})" if interface else ""))


def judge_connection(way: str, where: str, error: str | None) -> Finding:
    """Judge whether a port on which a host listens can be reached."""
    row = f"ports {way}"
    if error is None:
        return ok(row, "a free port is reached")
    fix = f"let the firewalls between them pass TCP to {where.rpartition(':')[0]}, at all ports from 1024 on"
    if error == "timed out":
        return fail(row, f"what is sent to {where} is dropped on the way", fix)
    return fail(row, f"{where} cannot be reached ({error})", fix)


def judge_master_port(first: str, port: int, taken: str | None, errors: Mapping[str, str | None]) -> Finding:
    """Judge a port; `taken`: why it cannot be opened; `errors`: by host, why it does not reach the port."""
    if taken is not None:
        return warn("master port", f"{port} cannot be listened at on {first} ({taken})", "set MASTER_PORT to another")
    shut = [name for name, error in errors.items() if error is not None]
    if shut:
        fix = f"open port {port} of {first} to the other hosts, or set MASTER_PORT to one that is open"
        return fail("master port", f"{' and '.join(shut)} cannot reach port {port} of {first}", fix)
    return ok("master port", f"{port} of {first} is reached")


def judge_latency(way: str, seconds: float) -> Finding:
    """Judge the round trip of a byte, in seconds."""
    row, sentence = f"latency {way}", f"{1e3 * seconds:.3g} ms to and fro"
    return warn(row, sentence, _RARELY) if seconds > FAR_SECONDS else ok(row, sentence)


def judge_bandwidth(way: str, rate: float) -> Finding:
    """Judge the bandwidth of one connection in one direction, in bytes per second."""
    row = f"bandwidth {way}"
    sentence = f"{8e-6 * rate:.3g} Mbit/s" if 8 * rate < 1e9 else f"{8e-9 * rate:.3g} Gbit/s"
    if 8 * rate < 1e4:
        return fail(row, f"next to nothing comes through ({sentence})", "see the row mtu, and what limits the way")
    return warn(row, sentence, _RARELY) if rate < SLOW_RATE else ok(row, sentence)


def judge_mtu(way: str, mtus: tuple[int | None, int | None], arrived: Mapping[str, Any]) -> Finding:
    """Judge the MTUs at both ends; `arrived`: whether a small datagram arrives, and the largest."""
    row, (mtu, other) = f"mtu {way}", mtus
    if arrived["small"] and not arrived["large"]:
        less = min(1500, (mtu or 1500) - 80)
        fix = f"set the MTU of both interfaces to what the way carries: ip link set dev NAME mtu {less}"
        return fail(row, f"packets of {mtu} bytes are lost on the way, and small ones are not", fix)
    if other is not None and mtu != other:
        return warn(row, f"{mtu} at one end and {other} at the other", "give both interfaces the same MTU")
    if not arrived["small"]:
        return ok(row, f"{mtu}; whether the way carries it is not known, as UDP does not come through")
    return ok(row, f"{mtu}, and packets of that size come through")


def _public(version: str) -> str:
    """Return a version without its build, such as `+cpu`."""
    return version.partition("+")[0]


def _each(by_host: Mapping[str, str]) -> str:
    return ", ".join(f"{value} on {name}" for name, value in by_host.items())
