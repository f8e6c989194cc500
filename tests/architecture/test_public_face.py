"""`import quorate` is light, and gives the names that users write."""

from __future__ import annotations

import subprocess
import sys

import pytest

import quorate
from tests.architecture.tree import ROOT

NAMES = ("join", "distribute", "loader", "log", "save", "load")


@pytest.mark.parametrize("name", NAMES)
def test_users_find(name: str) -> None:
    assert callable(getattr(quorate, name))
    assert name in dir(quorate)
    assert name in quorate.__all__


def test_the_alias_of_the_loader_is_the_same_function() -> None:
    assert quorate.shard is quorate.loader


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        _ = quorate.jion


def test_optimizers_are_found_through_it_alone() -> None:
    program = "import sys, quorate; print('torch' in sys.modules, quorate.optim.LARS.__name__)"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False LARS"


def test_importing_it_does_not_import_torch() -> None:
    program = (
        "import sys, quorate; print([name for name in ('torch', 'numpy', 'typer', 'rich') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
