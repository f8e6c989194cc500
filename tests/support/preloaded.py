"""Imported by the zygote of the tests: what its processes need is there in milliseconds, and stays shared."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress

import quorate
from quorate.core.errors import MissingExtra
from quorate.launch.warm.forks import IMPORTED

HEAVY = (
    *IMPORTED,
    "torch.distributed.run",
    "torch.nn.parallel",
    "pytest",
    "hypothesis",
    "quorate.cli.main",
    "quorate.strategies",
    "quorate.workloads",
    "tests.support.task",
    "tests.support.program",
)


def _everything_in(package: str) -> list[str]:
    place = importlib.import_module(package)
    modules = pkgutil.walk_packages(place.__path__, f"{package}.", onerror=lambda name: None)
    return [module.name for module in modules if not module.name.endswith("__main__")]


for name in HEAVY:
    with suppress(ImportError):  # what is optional
        importlib.import_module(name)
for name in _everything_in(quorate.__name__):
    with suppress(ImportError, MissingExtra):
        importlib.import_module(name)
