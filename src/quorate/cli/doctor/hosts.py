"""`quorate doctor --hosts`: what a run on several hosts needs, checked by a run with one process on each of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from quorate.cli.doctor import gpus, trials
from quorate.cli.doctor.findings import Checks, Finding, fail, ok, warn
from quorate.cli.hosts import ssh_here
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.launch.hosts.link import Link
from quorate.launch.hosts.reach import Layout, Place, layout_from
from quorate.wire.real.trust import LEAST_TOKEN


def hosts_in(text: str) -> Layout:
    """Return the hosts of `--hosts a,b`. Raises `ConfigurationError` for fewer than two."""
    layout = layout_from(text)
    if len(layout.places) < 2:
        raise ConfigurationError(f"--hosts {text}: name two hosts or more, with commas between them")
    return layout


def checks(layout: Layout, *, waits: bool = True, rates: list[dict[str, Any]] | None = None) -> Checks:
    """Yield the checks, each of which needs those before; rows that need a failed one are left out.

    `waits`: whether workers wait for each other in every step, so that a slow network is slow training. The bandwidth
    of all workers' sums is appended to `rates`.
    """
    if "QUORATE_TOKEN" in os.environ:
        yield "token", token
    reached: list[Place] = []
    for place in layout.places:
        yield f"host {place.host}", partial(_reach, place, reached)
    answer: dict[str, Any] = {}
    if len(reached) > 1:
        yield "processes", partial(_examine, reached, answer)
    is_whole = len(reached) == len(layout.places) and bool(answer)
    for name, finding in rows(reached, answer) if answer else ():
        is_judged = waits or finding.level != "WARN" or name.split()[0] not in ("latency", "bandwidth")
        is_whole &= finding.level != "FAIL"
        yield name, partial(Finding, *(finding if is_judged else ok(finding.found)))
    if rates is not None and is_whole:
        text = ",".join(f"{place.host}:{len(place.ranks)}" for place in layout.places)
        yield "quorate run", partial(trials.quorate_run, ["--hosts", text], rates)


def token() -> Finding:
    """Judge `QUORATE_TOKEN`, the secret that the hosts of a run share; without it the launcher makes one."""
    length = len(os.environ["QUORATE_TOKEN"].strip())
    fact, fix = f"QUORATE_TOKEN has {length} characters", f"set {LEAST_TOKEN} or more: openssl rand -hex 32"
    return ok(fact) if length >= LEAST_TOKEN else fail(fact, fix)


def _reach(place: Place, reached: list[Place]) -> Finding:
    link = Link(place, ssh_here(), lambda kind, rank, data: None)
    try:
        link.connect()
    except ConfigurationError as error:
        return fail(str(error), f"see that this works: ssh {place.host} {sys.executable} -m quorate.cli.main --version")
    finally:
        link.close()
    reached.append(place)
    return ok(f"its agent answers, with quorate {link.about['version']}")


def _examine(reached: list[Place], answer: dict[str, Any]) -> Finding:
    try:
        with trials.in_run(["--hosts", ",".join(place.host for place in reached)]) as words:
            answer |= trials.tried(*words, "quorate.cli.doctor.connection")
    except QuorateError as error:
        return fail(str(error), "see that each host has this folder; quorate run --hosts says more")
    return ok(f"one on each host, in {os.getcwd()}")


def rows(places: list[Place], answer: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Yield what the processes have found: addresses, torch, GPUs, versions, and the ways between hosts."""
    names, hosts = [place.host for place in places], answer["hosts"]
    for place, about in zip(places, hosts, strict=True):
        yield f"address {place.host}", Finding(*about["address"])
        if "error" in about:
            yield f"torch {place.host}", fail(f"torch cannot be imported: {about['error']}", "reinstall torch")
        for row, finding in gpus.rows(about["facts"], len(place.ranks)) if "facts" in about else ():
            yield f"{row} {place.host}", finding
    facts = {name: about["facts"] for name, about in zip(names, hosts, strict=True) if "facts" in about}
    yield "versions", versions(facts)
    for source, target, judged in answer["ways"]:
        for row, entry in judged.items():
            yield f"{row} {names[source]} > {names[target]}", Finding(*entry)


def versions(facts: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Judge whether the hosts have the same Python and torch, without the build of either, such as `+cpu`."""
    by_package = {
        "torch": {name: about["torch_version"].partition("+")[0] for name, about in facts.items()},
        "Python": {name: ".".join(about["python_version"].split(".")[:2]) for name, about in facts.items()},
    }
    for package, by_host in by_package.items():
        if len(set(by_host.values())) > 1:
            words = ", ".join(f"{version} on {name}" for name, version in by_host.items())
            level = fail if package == "torch" else warn
            return level(f"{package} differs: {words}", f"install the same {package} on every host")
    return ok(", ".join(f"{package} {next(iter(by_host.values()), '?')}" for package, by_host in by_package.items()))
