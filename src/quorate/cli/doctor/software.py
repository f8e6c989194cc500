"""Installed software: packages against the versions that Quorate declares, extras, torch and GPUs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.installed import requirements, version_of


def packages() -> Finding:
    """Judge the versions of the packages that are always needed."""
    needed = [(package, version_of(package), admitted) for package, admitted, extra in requirements() if not extra]
    if not needed:
        return ok("not known: Quorate runs from its source, without being installed")
    wrong = [
        requirement for requirement in needed if requirement[1] is None or not admits(requirement[2], requirement[1])
    ]
    if wrong:
        words = [f"{package} {version or 'is missing'} ({admitted})" for package, version, admitted in wrong]
        return fail(
            ", ".join(words), "pip install " + " ".join(f"'{package}{admitted}'" for package, _, admitted in wrong)
        )
    return ok(", ".join(f"{package} {version}" for package, version, _ in needed))


def namesake() -> Finding:
    """Warn of the other program that is called `quorate` on PyPI, if it is installed beside `torch-quorate`."""
    from importlib import metadata

    versions = {about.metadata["Name"]: about.version for about in metadata.distributions()}
    if {"quorate", "torch-quorate"} <= versions.keys():
        return warn(
            f"quorate {versions['quorate']} is another program, and its files and those of torch-quorate overwrite "
            "each other",
            "uninstall both (pip uninstall quorate torch-quorate), then install Quorate from its clone again",
        )
    return ok("no other program is called quorate")


def admits(admitted: str, version: str) -> bool:
    """Return whether the release of `version` is within the clauses `admitted`, such as `<2.14,>=2.10`."""
    bounds = {sign: _numbers(bound) for sign, bound in re.findall(r"(>=|<)([\d.]+)", admitted)}
    return bounds.get(">=", ()) <= _numbers(version) and ("<" not in bounds or _numbers(version) < bounds["<"])


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers without zeros at the end: 2.0 is 2."""
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", release.group()).split("."))) if release else ()


def extras() -> Finding:
    """List the extras whose packages are installed, and the others; a missing one is no fault."""
    installed: dict[str, bool] = defaultdict(lambda: True)
    for package, _, extra in requirements():
        if extra not in ("", "dev"):
            installed[extra] &= version_of(package) is not None
    missing = [extra for extra, is_there in installed.items() if not is_there]
    present = ", ".join(extra for extra in installed if extra not in missing) or "none"
    return ok(f"{present}; without {', '.join(missing)}" if missing else present)


def torch(environment: Mapping[str, Any]) -> Finding:
    """Name torch, Python and the system, from `torch.utils.collect_env`."""
    python = environment["python_version"].partition(" ")[0]
    return ok(f"{environment['torch_version']}, Python {python}, {environment['os']}")


def gpu(environment: Mapping[str, Any]) -> Finding:
    """Judge the GPUs: a driver without a GPU that torch can use is a warning, no GPU is none."""
    names, driver = environment["gpus"], environment["nvidia_driver_version"]
    build = environment["cuda_compiled_version"] or environment["hip_compiled_version"]
    if names:
        return ok(f"{len(names)}: {', '.join(sorted(set(names)))} (torch built for {build})")
    if driver is not None:
        why = "torch was built for the CPU" if build in (None, "N/A") else f"torch, built for {build}, sees none"
        return warn(f"driver {driver} is installed, but {why}", "install torch for your driver's version of CUDA")
    return ok("none; workers compute on the CPU")
