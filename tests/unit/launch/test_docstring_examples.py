"""Examples in docstrings of the API run, in a world of one worker, and print what they say."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import quorate
from quorate.notebook.launching import launch
from quorate.notebook.reporting import report
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import run_real_world

MODULES = {"attention": None, "launch": launch, "report": report, "optim": None, "strategies": None, "shrink": None}
"""Public names that are modules: what a call of them calls, or None."""
WITHOUT_AN_EXAMPLE = {"World.serve_until_done", "World.barrier"}
"""Calls without arguments and results."""
OF_OTHER_LIBRARIES = {"attention.register"}
RETURNED = {"shrink.Pruning", "shrink.Shrinking"}
"""Classes whose objects other calls return."""
OF_PROCESSES = {"World.mesh", "parallelize"}
"""What virtual workers refuse."""
ARGUMENTS_ELSEWHERE = {"World", "World.all", "World.max", "loader", "shard"}
"""Descriptions that refer to others, or to those of torch's DataLoader."""


def described() -> Iterator[tuple[str, Any]]:
    """Public functions and classes, and methods of `World` and `DistributedOptimizer`, by name."""
    for name in quorate.__all__:
        entry = MODULES[name] if name in MODULES else getattr(quorate, name)
        if entry is not None:
            yield name, entry
    for package in ("attention", "optim", "shrink"):
        places: Any = getattr(quorate, package)
        for name, module in places._PLACES.items():
            entry = getattr(import_module(module if "." in module else f"quorate.{package}.{module}"), name)
            if not is_dataclass(entry) and f"{package}.{name}" not in OF_OTHER_LIBRARIES | RETURNED:
                yield f"{package}.{name}", entry
    for kind in (quorate.World, quorate.DistributedOptimizer):
        members = {
            name: member
            for each in kind.__mro__
            if each.__module__.startswith("quorate.")
            for name, member in vars(each).items()
        }
        for name, member in members.items():
            if inspect.isfunction(member) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}", member


DESCRIBED = dict(described())


def run(name: str, folder: Path, world: quorate.World) -> str:
    """What differs when the examples of a docstring run; empty where nothing does."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    inputs, targets = torch.randn(8, 4), torch.randint(3, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names: dict[str, Any] = {
        "torch": torch,
        "numpy": numpy,
        "quorate": quorate,
        "world": world,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "inputs": inputs,
        "targets": targets,
        "dataset": torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(3, (32,))),
        "loss": torch.tensor(0.0),
        "folder": folder,
        "path": folder / "data",
    }
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(DESCRIBED[name]) or "", names, name, None, None)
    assert test.examples, "it has no example"
    said: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("name", sorted(DESCRIBED.keys() - WITHOUT_AN_EXAMPLE))
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = partial(run, name, tmp_path)
    printed = run_real_world(1, example) if name in OF_PROCESSES else VirtualWorld(1).run(joined(example))
    assert printed == [""]


@pytest.mark.parametrize("name", sorted(DESCRIBED.keys() - ARGUMENTS_ELSEWHERE))
def test_arguments_are_described(name: str) -> None:
    text = inspect.getdoc(DESCRIBED[name]) or ""
    parameters = set(inspect.signature(DESCRIBED[name]).parameters) - {"self"}
    described = set(re.findall(r"\w+", text.partition("Args:")[2].partition("Example:")[0]))
    assert parameters <= described
    assert not re.match(r"(What|Of|As|Those|Where|Likewise)\b", text)
