"""Imported by the process that forks those of the tests: what they need is there in milliseconds, and stays shared."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from contextlib import suppress

import quorate
from quorate.launch.warm.run_server import IMPORTED

HEAVY = (
    *IMPORTED,
    "torch.distributed.run",
    "torch.nn.parallel",
    "pytest",
    "hypothesis",
    "quorate.cli.main",
    "quorate.strategies",
    "quorate.workloads",
)


def _everything_in(package: str) -> list[str]:
    place = importlib.import_module(package)
    found = pkgutil.walk_packages(place.__path__, f"{package}.", onerror=lambda name: None)
    return [each.name for each in found if not each.name.endswith("__main__")]


for name in HEAVY:
    with suppress(ImportError):  # what is optional
        importlib.import_module(name)
for name in _everything_in(quorate.__name__):
    with suppress(ImportError):
        importlib.import_module(name)
gc.collect()
gc.freeze()  # a collection in a forked process writes to no page that it shares
