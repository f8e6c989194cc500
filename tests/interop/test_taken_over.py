"""Scripts for Accelerate, Lightning, transformers.Trainer and timm, unchanged, under `quorate run --strategy`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.architecture.tree import ROOT
from tests.support.libraries import TIMM, run, skipped

SCRIPTS = ROOT / "tests" / "support" / "library_scripts"
NEEDS = {
    "accelerate_nlp": ("accelerate", "transformers"),
    "accelerate_cv": ("accelerate",),
    "lightning_ddp": ("lightning",),
    "trainer": ("accelerate", "transformers"),
    "timm_train": ("timm",),
}
pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(280)]


def scripts(*names: str) -> pytest.MarkDecorator:
    """Return the cases of a test: those scripts, or all, skipped where a library is missing."""
    return pytest.mark.parametrize("name", [pytest.param(x, marks=skipped(*NEEDS[x])) for x in names or NEEDS])


def start(folder: Path, name: str, size: int, strategy: str | None, *arguments: str) -> str:
    """Return the output of the script."""
    folder.mkdir(exist_ok=True)
    own = {"accelerate_nlp": ("--cpu",), "accelerate_cv": ("--cpu",), "lightning_ddp": ("--devices", str(size))}
    options = () if strategy is None else ("--strategy", strategy)
    script, paths = str(SCRIPTS / f"{name}.py"), [TIMM] if name == "timm_train" else []
    return run(folder, "-n", str(size), *options, script, *own.get(name, ()), *arguments, paths=paths)


def state(folder: Path, moment: str, size: int) -> dict[str, Tensor]:
    """Return the state that each worker has saved, which is the same: `evaluated`, or the `state` at the end."""
    first, *others = (torch.load(folder / f"{moment}-{rank}.pt") for rank in range(size))
    for other in others:
        assert list(other) == list(first)
        assert all(torch.equal(other[key], first[key]) for key in first), moment
    assert all(x.isfinite().all() for x in first.values())
    return dict(first)


def check_equal(own: dict[str, Tensor], ours: dict[str, Tensor], tolerance: float) -> None:
    """Compare states; `tolerance` is a share of the largest weight."""
    assert list(own) == list(ours)
    largest = max(float(x.abs().max()) for x in own.values() if x.is_floating_point())
    for key, x in own.items():
        torch.testing.assert_close(ours[key], x, rtol=0, atol=tolerance * largest, msg=key)


@scripts()
@pytest.mark.parametrize(("size", "tolerance"), [(2, 0.0), (3, 1e-6)])
def test_all_reduce_has_the_numbers_of_ddp(name: str, size: int, tolerance: float, tmp_path: Path) -> None:
    start(tmp_path / "own", name, size, None)
    start(tmp_path / "ours", name, size, "all-reduce")
    for moment in ("evaluated", "state"):
        check_equal(state(tmp_path / "own", moment, size), state(tmp_path / "ours", moment, size), tolerance)


@scripts()
@pytest.mark.parametrize("strategy", ["eager-majority", "local-sgd", "d-psgd"])
def test_evaluations_and_the_end_have_the_agreed_model(name: str, strategy: str, tmp_path: Path) -> None:
    start(tmp_path, name, 3, strategy)
    for moment in ("evaluated", "state"):
        state(tmp_path, moment, 3)


RESUMED = {
    "accelerate_cv": (
        ("--checkpointing_steps", "6", "--stop", "6"),
        ("--resume_from_checkpoint", "step_6"),
    ),
    "trainer": (("--stop", "4"), ()),
    "lightning_ddp": (("--epochs", "1"), ("--ckpt_path", "kept/last.ckpt")),
}
"""The arguments of the part before, and those of the part after it."""


@scripts(*RESUMED)
def test_the_library_s_own_checkpoint_is_resumed(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start(whole, name, 2, "all-reduce")
    for arguments in RESUMED[name]:
        start(parts, name, 2, "all-reduce", *arguments)
    check_equal(state(whole, "state", 2), state(parts, "state", 2), 0.0)
