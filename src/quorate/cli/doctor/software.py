"""Installed software: packages against the versions that Quorate declares, and another program of the name."""

from __future__ import annotations

import re
from importlib import metadata

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.installed import requirements, version_of


def packages() -> Finding:
    """Judge the versions of the packages that are always needed."""
    needed = [(package, version_of(package), admitted) for package, admitted, extra in requirements() if not extra]
    wrong = [entry for entry in needed if entry[1] is None or not admits(entry[2], entry[1])]
    if wrong:
        words = [f"{package} {version or 'is missing'} ({admitted})" for package, version, admitted in wrong]
        names = [f"'{package}{admitted}'" for package, _, admitted in wrong]
        return fail(", ".join(words), f"pip install {' '.join(names)}")
    known = ", ".join(f"{package} {version}" for package, version, _ in needed)
    return ok(known or "not known: Quorate runs from its source, without being installed")


def extras() -> Finding:
    """List the extras whose packages are installed, and the others; a missing one is no fault."""
    needed = [(extra, version_of(package)) for package, _, extra in requirements() if extra not in ("", "dev")]
    lacking = dict.fromkeys(extra for extra, version in needed if version is None)
    present = ", ".join(dict.fromkeys(extra for extra, _ in needed if extra not in lacking)) or "none"
    return ok(f"{present}; without {', '.join(lacking)}" if lacking else present)


def namesake() -> Finding:
    """Warn of the other program that is called `quorate` on PyPI, if it is installed beside `torch-quorate`."""
    versions = {about.metadata["Name"]: about.version for about in metadata.distributions()}
    if {"quorate", "torch-quorate"} <= versions.keys():
        fact = f"quorate {versions['quorate']} is another program, and overwrites files of torch-quorate"
        return warn(fact, "pip uninstall quorate torch-quorate, then install Quorate from its clone again")
    return ok("no other program is called quorate")


def admits(admitted: str, version: str) -> bool:
    """Return whether the release of `version` is within the clauses `admitted`, such as `<2.14,>=2.10`."""
    bounds = {sign: _numbers(bound) for sign, bound in re.findall(r"(>=|<)([\d.]+)", admitted)}
    return bounds.get(">=", ()) <= _numbers(version) and ("<" not in bounds or _numbers(version) < bounds["<"])


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers without zeros at the end: 2.0 is 2."""
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", release.group()).split("."))) if release else ()
