"""Scripts for Accelerate, Lightning, transformers.Trainer and timm, unchanged, under `quorate run --strategy`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
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


STRATEGIES = ("eager-majority", "local-sgd:sync_every=4", "d-psgd")
LONGER = {
    "accelerate_nlp": ("--num_epochs", "6"),
    "accelerate_cv": ("--epochs", "5"),
    "lightning_ddp": ("--epochs", "4", "--lr", "0.3"),
    "trainer": ("--max_steps", "24", "--optim", "adamw_torch", "--learning_rate", "0.02"),
    "timm_train": ("--epochs", "4"),
}
"""Arguments of a training that is long enough to learn something."""


def losses(output: str) -> list[float]:
    """Return the printed losses of rank 0's batches."""
    return [float(x) for x in re.findall(r"^loss=([0-9.]+)$", output, re.MULTILINE)]


def learned(output: str) -> float:
    """Return by how much the losses of the last third are below that of the first batch."""
    seen = losses(output)
    last = seen[-len(seen) // 3 :]
    return seen[0] - sum(last) / len(last)


@pytest.fixture(scope="module")
def learned_by_all_reduce(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], float]:
    """Return what `learned` is of a script under `all-reduce`, which is run once."""

    @cache
    def difference(name: str, size: int) -> float:
        return learned(start(tmp_path_factory.mktemp(name), name, size, "all-reduce", *LONGER[name]))

    return difference


@scripts()
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_learns_and_all_evaluate_and_save_the_agreed_model(
    name: str, strategy: str, size: int, tmp_path: Path, learned_by_all_reduce: Callable[[str, int], float]
) -> None:
    difference = learned(start(tmp_path, name, size, strategy, *LONGER[name]))
    for moment in ("evaluated", "state"):
        state(tmp_path, moment, size)
    assert difference > 0.5 * learned_by_all_reduce(name, size) > 0


RESUMED = {
    "accelerate_cv": (
        ("--checkpointing_steps", "6", "--stop", "6"),
        ("--resume_from_checkpoint", "step_6"),
    ),
    "trainer": (("--stop", "4"), ()),
    "lightning_ddp": (("--epochs", "1"), ("--ckpt_path", "kept/last.ckpt")),
    "timm_train": (
        ("--drop", "0", "--mixup", "0", "--stop", "1"),
        ("--drop", "0", "--mixup", "0", "--resume", "out/last.pth.tar"),
    ),
}
"""The arguments of the part before, and those of the part after it. timm keeps no state of generators."""


@scripts(*RESUMED)
def test_the_library_s_own_checkpoint_is_resumed(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start(whole, name, 2, "all-reduce", *(RESUMED[name][0][:4] if name == "timm_train" else ()))
    for arguments in RESUMED[name]:
        start(parts, name, 2, "all-reduce", *arguments)
    check_equal(state(whole, "state", 2), state(parts, "state", 2), 0.0)


HALVES = {
    "accelerate_cv": (("--stop_after", "2"), ("--resume_from_checkpoint", "epoch_1")),
    "trainer": (("--stop", "12"), ()),
    "lightning_ddp": (("--epochs", "2"), ("--ckpt_path", "kept/last.ckpt")),
    "timm_train": (("--stop", "2"), ("--resume", "out/last.pth.tar")),
}
"""The same of the longer training."""


@scripts(*HALVES)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_training_goes_on_from_it(name: str, strategy: str, size: int, tmp_path: Path) -> None:
    before, after = (losses(start(tmp_path, name, size, strategy, *LONGER[name], *half)) for half in HALVES[name])
    state(tmp_path, "state", size)
    begun = min(after[:2])
    assert begun - before[-1] < 0.5 * (before[0] - before[-1]), (before, after)
    assert after[-1] < before[0]


VARIANTS = {
    "accelerate_nlp in bf16": ("accelerate_nlp", "--mixed_precision", "bf16"),
    "lightning_ddp clipped in bf16": ("lightning_ddp", "--precision", "bf16-mixed"),
    "lightning_ddp compiled": ("lightning_ddp", "--compile", "aot_eager"),
    "lightning_ddp with SWA": ("lightning_ddp", "--average", "swa"),
    "lightning_ddp with EMA": ("lightning_ddp", "--average", "ema"),
    "timm_train in bf16": ("timm_train", "--amp"),
    "timm_train compiled": ("timm_train", "--torchcompile", "aot_eager"),
    "trainer in bf16": ("trainer", "--bf16"),
    "trainer compiled": ("trainer", "--torch_compile"),
}


@pytest.mark.parametrize("variant", [pytest.param(x, marks=skipped(*NEEDS[x.split()[0]])) for x in VARIANTS])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_precisions_averages_and_graphs_are_the_script_s(variant: str, strategy: str, tmp_path: Path) -> None:
    name, *arguments = VARIANTS[variant]
    longer = LONGER[name] if "compiled" not in variant else ()
    output = start(tmp_path, name, 2, strategy, *longer, *arguments)
    for moment in ("evaluated", "state"):
        state(tmp_path, moment, 2)
    if longer:
        assert learned(output) > 0.1
