"""Installed software: Python, torch and other packages against the supported versions, extras, GPUs."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.launch.run.folder import version_of

OLDEST_PYTHON = (3, 11)
NEEDED = {
    "torch": ">=2.10,<2.14",
    "numpy": ">=2",
    "safetensors": ">=0.5",
    "pydantic": ">=2.10,<3",
    "typer": ">=0.15",
    "rich": ">=14.2",
}
"""The packages that are always needed, in the versions that are supported; pyproject.toml says the same."""
EXTRAS = {
    "digits": ("sklearn",),
    "images": ("PIL",),
    "kernels": ("numba",),
    "mlflow": ("mlflow",),
    "notebook": ("cloudpickle", "ipykernel"),
    "parquet": ("pyarrow",),
    "privacy": ("dp_accounting",),
    "tensorboard": ("tensorboard",),
    "tls": ("cryptography",),
    "wandb": ("wandb",),
    "docs": ("sphinx", "myst_parser", "furo"),
}
"""The modules that each extra brings."""
EXTRAS_FOR = {
    "digits": "the workload digits",
    "images": "images in quorate.files",
    "kernels": "aggregation rules on CPUs in half the time",
    "mlflow": "numbers of a run in MLflow",
    "notebook": "quorate.launch(n=...), and kernels of notebooks",
    "parquet": "parquet in quorate.files",
    "privacy": "quorate.privacy_spent",
    "tensorboard": "event files beside the records",
    "tls": "encryption between hosts (QUORATE_TLS)",
    "wandb": "numbers of a run in Weights & Biases",
    "docs": "building this documentation",
}


class Package(NamedTuple):
    """A required package: its installed version (None: missing), and the supported ones, such as `>=2,<3`."""

    name: str
    version: str | None
    admitted: str


def probe_python() -> tuple[int, int, int]:
    """Return the interpreter's version."""
    return sys.version_info[:3]


def judge_python(version: tuple[int, int, int]) -> Finding:
    """Judge the version of Python; one older than `OLDEST_PYTHON` is a failure."""
    sentence = f"{'.'.join(map(str, version))}, {platform.python_implementation()} on {platform.system()}"
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return fail("python", sentence, f"install Python {oldest} or later, and Quorate in it")
    return ok("python", sentence)


def probe_packages() -> list[Package]:
    """Return all required packages, without an import."""
    return [Package(name=name, version=version_of(name), admitted=admitted) for name, admitted in NEEDED.items()]


def judge_torch(packages: Sequence[Package]) -> Finding:
    """Judge the version of torch; an unsupported one is a failure."""
    return _judged("torch", [package for package in packages if package.name == "torch"])


def judge_packages(packages: Sequence[Package]) -> Finding:
    """Judge the versions of the packages other than torch."""
    others = [package for package in packages if package.name != "torch"]
    return _judged("packages", others)


def _judged(name: str, packages: Sequence[Package]) -> Finding:
    wrong = [
        package for package in packages if package.version is None or not admits(package.admitted, package.version)
    ]
    if wrong:
        sentence = "; ".join(
            f"{package.name} {package.version or 'is missing'}, supported {package.admitted}" for package in wrong
        )
        wanted = " ".join(f"'{package.name}{package.admitted}'" for package in wrong)
        return fail(name, sentence, f"pip install {wanted}")
    return ok(name, ", ".join(f"{package.name} {package.version}" for package in packages))


def admits(admitted: str, version: str) -> bool:
    """Return whether the release of `version` is within the clauses `admitted`, such as `>=2.10,<2.14`."""
    bounds = {sign: _numbers(bound) for sign, bound in re.findall(r"(>=|<)([\d.]+)", admitted)}
    return bounds.get(">=", ()) <= _numbers(version) and ("<" not in bounds or _numbers(version) < bounds["<"])


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers without zeros at the end: 2.0 is 2."""
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", release.group()).split("."))) if release else ()


def probe_extras() -> dict[str, bool]:
    """Return by extra whether all of its modules are installed, without an import."""
    return {extra: all(importlib.util.find_spec(name) for name in names) for extra, names in EXTRAS.items()}


def judge_extras(there: Mapping[str, bool]) -> Finding:
    """Judge the extras; a missing one is no fault."""
    missing = [extra for extra, is_there in there.items() if not is_there]
    installed = ", ".join(extra for extra, is_there in there.items() if is_there) or "none"
    if not missing:
        return ok("extras", f"installed: {installed}")
    fix = "; ".join(f"for {EXTRAS_FOR[extra]}: pip install '.[{extra}]'" for extra in missing)
    return ok("extras", f"installed: {installed}; not installed: {', '.join(missing)}", fix)


def judge_gpu(names: Sequence[str], build: str | None, *, has_driver: bool) -> Finding:
    """Judge the GPUs: one that torch cannot use is a warning, no GPU is none.

    `names` are the GPUs that torch sees, `build` is the version of CUDA or ROCm it was built for, None for a CPU build.
    """
    if names:
        return ok("gpu", f"{len(names)}: {', '.join(sorted(set(names)))} (torch built for {build})")
    if has_driver:
        why = "torch was built for the CPU" if build is None else f"torch, built for {build}, sees none"
        return warn("gpu", f"a driver is installed, but {why}", "install torch for your driver's version of CUDA")
    return ok("gpu", "none; workers compute on the CPU")
