"""Findings from the facts about several hosts: one sentence each, and the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.cli.doctor.software import OLDEST_PYTHON

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
