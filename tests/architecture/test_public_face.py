"""`import quorate` is light, and gives the names that users write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import quorate
from tests.architecture.tree import PACKAGE, ROOT

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


def test_only_what_is_public_is_shown() -> None:
    assert dir(quorate) == sorted([*quorate.__all__, "__version__"])


def test_it_has_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", quorate.__version__)


@pytest.mark.parametrize(
    ("distributions", "warns"),
    [
        (["quorate-0.1.1", "torch_quorate-0.2.0"], True),
        (["torch_quorate-0.2.0"], False),
        (["quorate-0.1.0"], False),
        ([], False),
    ],
)
def test_another_program_of_that_name_beside_it_is_named(distributions: list[str], warns: bool, tmp_path: Path) -> None:
    (tmp_path / "quorate").symlink_to(PACKAGE)
    for name in distributions:
        (tmp_path / f"{name}.dist-info").mkdir()
    command = [sys.executable, "-c", "import quorate"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert run.stderr.count("UserWarning: another program called quorate is installed in ") == warns


def test_a_call_before_join_ends_in_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, quorate\n"
        "model = torch.nn.Linear(2, 1)\n"
        "quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)\n"
    )
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == "quorate: no world has been joined; call quorate.join() first (train.py, line 3)\n"


def test_other_errors_after_one_that_was_caught_are_shown_whole(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import quorate\ntry:\n    quorate.log(a=1)\nexcept ValueError:\n    raise KeyError('x') from None\n"
    )
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("Traceback")
    assert run.stderr.endswith("KeyError: 'x'\n")
