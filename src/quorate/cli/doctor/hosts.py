"""`quorate doctor --hosts`: what a run on several hosts needs, checked from each of them by its agent."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import permutations
from typing import Any

from quorate.cli.doctor.findings import Checks, Finding, fail, ok, warn
from quorate.cli.hosts import ssh_here
from quorate.core.errors import ConfigurationError
from quorate.launch.hosts.link import Link
from quorate.launch.hosts.reach import Layout, Place, layout_from

SECONDS = 15.0
"""Time limit of an answer."""
_WITHOUT_SSH = "sh -c " + shlex.quote('for command; do :; done; eval "$command"') + " sh"
"""A command in place of ssh that runs its last argument here."""


def hosts_in(text: str) -> Layout:
    """Return the hosts of `--hosts a,b`. Raises `ConfigurationError` for fewer than two."""
    layout = layout_from(text)
    if len(layout.places) < 2:
        raise ConfigurationError(f"--hosts {text}: name two hosts or more, with commas between them")
    return layout


class Host:
    """A host, its agent, and the answers of the programs that the agent starts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.about: dict[str, Any] = {"address": ""}
        is_here = name in ("localhost", "127.0.0.1", socket.gethostname())
        self._output: dict[int, bytes] = defaultdict(bytes)
        self.link = Link(Place(name, range(1)), _WITHOUT_SSH if is_here else ssh_here(), self._wrote)

    @property
    def address(self) -> str:
        """The address at which the others reach it; empty if they do not."""
        return str(self.about["address"])

    def _wrote(self, kind: str, rank: int, data: bytes) -> None:
        self._output[rank] += data

    def ask(self, *words: object) -> dict[str, Any]:
        """Return the answer of `connection`, started on the host with these words. Raises `OSError` without one."""
        program, number = [sys.executable, "-m", "quorate.cli.doctor.connection"], len(self._output) + 1
        self._output[number] = b""
        # An agent starts workers, which have a board and a folder for records; this program needs neither.
        environment = {"QUORATE_BOARD": "unix:", "QUORATE_RUN": tempfile.gettempdir()}
        self.link.start(number, [*program, *map(str, words)], None, "/", environment)
        until, has_ended = time.monotonic() + SECONDS, False
        while not has_ended:
            has_ended = number in self.link.statuses
            if self.link.lost or self.link.refused:
                raise OSError(self.link.lost or self.link.refused)
            *lines, _ = self._output[number].split(b"\n")
            with suppress(ValueError, IndexError):
                answer: dict[str, Any] = json.loads(lines[-1])
                return answer
            if time.monotonic() > until:
                raise OSError(f"no answer within {SECONDS:g} s")
            time.sleep(0.01)
        raise OSError(self._output[number].decode(errors="replace").strip().rpartition("\n")[2] or "no answer")


def checks(layout: Layout) -> Checks:
    """Yield the checks, each of which needs those before; rows that need a failed one are left out."""
    with ExitStack() as stack:
        hosts = [Host(place.host) for place in layout.places]
        reached: list[Host] = []
        located: list[Host] = []
        for host in hosts:
            stack.callback(host.link.close)
        for host in hosts:
            yield f"host {host.name}", partial(_reach, host, reached)
        if len(reached) < 2:
            return
        for host in reached:
            yield f"address {host.name}", partial(_locate, host, reached, located)
        abouts = {host.name: host.about for host in reached if "python" in host.about}
        if abouts:
            yield "versions", partial(versions, abouts)
        for source, target in permutations(located, 2):
            for host in reached:
                host.link.beat()
            answer: dict[str, Any] = {}
            way = f"{source.name} > {target.name}"
            yield f"ports {way}", partial(_measure, source, target, answer)
            for name in ("latency", "bandwidth", "mtu"):
                if name in answer:
                    yield f"{name} {way}", partial(Finding, *answer[name])


def _reach(host: Host, reached: list[Host]) -> Finding:
    try:
        host.link.connect()
    except ConfigurationError as error:
        return fail(str(error), f"see that this works: ssh {host.name} {sys.executable} -m quorate.cli.main --version")
    reached.append(host)
    return ok(f"its agent answers, with quorate {host.link.about['version']}")


def _locate(host: Host, hosts: Sequence[Host], located: list[Host]) -> Finding:
    """Find the address of a host for the others: as in workers, the one from which it reaches the first host."""
    other = hosts[host is hosts[0]]
    name = other.name.rpartition("@")[2]
    host.about |= host.ask("listen", other.address or name)
    if "error" in host.about:
        return fail(host.about["error"], "see to its /etc/hosts, its interfaces and its routes (ip route)")
    if host.address.startswith("127."):
        fix = f"let {name} lead to its own address in /etc/hosts there, or name it by its address"
        return fail(f"{name} leads to {host.address} there, which is {host.name} itself", fix)
    located.append(host)
    return ok(host.address)


def _measure(source: Host, target: Host, answer: dict[str, Any]) -> Finding:
    answer |= source.ask("measure", target.address, target.about["port"])
    return Finding(*answer["ports"])


def versions(abouts: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Judge whether the hosts have the same Python and torch, without the build of either, such as `+cpu`."""
    by_package = {
        "torch": {name: (about["torch"] or "none").partition("+")[0] for name, about in abouts.items()},
        "Python": {name: about["python"].rpartition(".")[0] for name, about in abouts.items()},
    }
    for package, by_host in by_package.items():
        if len(set(by_host.values())) > 1 or "none" in by_host.values():
            words = ", ".join(f"{version} on {name}" for name, version in by_host.items())
            level = fail if package == "torch" else warn
            return level(f"{package} differs: {words}", f"install the same {package} on every host")
    return ok(", ".join(f"{package} {next(iter(by_host.values()))}" for package, by_host in by_package.items()))
