"""Checkpoints that somebody has changed, sums and all: loaded where they are right, else refused; never a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.folder import MANIFEST
from quorate.checkpoint.loading import choose
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.errors import CheckpointError, PeerFailed
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.hostile_checkpoints import change_manifest, change_tree, inside, mutate, put
from tests.support.joined import joined
from tests.support.kept_trainings import Told, in_world, train
from tests.support.sampled import Few

STRATEGIES: dict[str, dict[str, Any]] = {"all-reduce": {}, "quorum": {"wait_for": 1}, "slowmo": {"sync_every": 2}}
MUTATIONS = 10
"""Mutations of each strategy: enough to see that the checks hold; more were tried when they were made."""
RANK, OWN = "rank-0.safetensors", ("optimizers", "1")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two checkpoints of each strategy."""
    roots = {name: tmp_path_factory.mktemp(name) for name in STRATEGIES}
    for name, root in roots.items():
        choice = {"strategy": name, **STRATEGIES[name]}
        in_world(
            2, root, lambda world, choice=choice: train(world, 7, saves=lambda rank, step: step % 3 == 0, **choice)
        )
    return roots


def copied(kept: dict[str, Path], name: str, folder: Path) -> tuple[Path, Path]:
    """The root, and the newest checkpoint in it."""
    root = Path(shutil.copytree(kept[name], folder / "kept"))
    return root, max(root.iterdir())


def outcomes(root: Path, name: str) -> list[Any]:
    """The outcomes of two workers that continue from there."""

    @joined
    def live(world: quorate.World) -> Told:
        current.here().context(CheckpointContext).root = root
        return train(world, 9, strategy=name, **STRATEGIES[name])

    return VirtualWorld(2, timeout=20.0, generators=True).outcomes(live)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_mutation_loads_or_is_refused(name: str, kept: dict[str, Path], tmp_path: Path, few: Few) -> None:
    for number in few(range(MUTATIONS)):
        draw = random.Random(f"{name} {number}")
        root, newest = copied(kept, name, tmp_path / str(number))
        mutation = mutate(draw, newest)
        errors = [outcome.error for outcome in outcomes(root, name) if outcome.error is not None]
        own = [error for error in errors if not isinstance(error, PeerFailed)]
        assert not errors or own, mutation
        assert all(isinstance(error, CheckpointError) for error in own), (mutation, own)


def at(*keys: Any, value: Any, name: str = RANK) -> Callable[[Path], None]:
    """A change in a tree."""
    return lambda folder: change_tree(folder, name, lambda tree: put(tree, *keys, value=value))


def says(*keys: str, value: Any) -> Callable[[Path], None]:
    """A change in the manifest."""

    def change(said: dict[str, Any]) -> None:
        for key in keys[:-1]:
            said = said[key]
        said[keys[-1]] = value

    return lambda folder: change_manifest(folder, change)


def _outside(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent.parent / "model.safetensors")
    says("optimizers", "1", "model", value="../../model.safetensors")(folder)


def _fifo(folder: Path) -> None:
    (folder / RANK).unlink()
    os.mkfifo(folder / RANK)


def _manifest_fifo(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)


def _folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def _link(folder: Path) -> None:
    shutil.move(folder / RANK, folder.parent.parent / "elsewhere")
    (folder / RANK).symlink_to(folder.parent.parent / "elsewhere")


def _giant(folder: Path) -> None:
    os.truncate(folder / MANIFEST, 1 << 40)


def _giant_model(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1 << 40)


def _wide(folder: Path) -> None:
    def wider(tensors: dict[str, torch.Tensor]) -> None:
        tensors["state.0.exp_avg"] = torch.zeros(7)

    change_tree(folder, "optimizer.safetensors", lambda tree: None, wider)


GENERATORS = ("generators",)
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "numpy far": (
        at(*GENERATORS, "numpy", 2, value=2_000_000_000),
        "the states of the random generators are not valid",
    ),
    "numpy next": (at(*GENERATORS, "numpy", 2, value=625), "the states of the random generators are not valid"),
    "numpy before": (at(*GENERATORS, "numpy", 2, value=-1), "the states of the random generators are not valid"),
    "python far": (at(*GENERATORS, "python", 1, 624, value=2**40), "the states of the random generators are not valid"),
    "outside": (_outside, "optimizers.1.model: String should match pattern"),
    "absolute": (says("optimizers", "1", "model", value="/etc/passwd"), "optimizers.1.model: String should match"),
    "no files": (says("files", value={}), "does not list the file rank-0.safetensors, which is to be read"),
    "no workers": (says("workers", value=-1), "workers: Input should be greater than or equal to 1"),
    "other workers": (says("workers", value=3), "does not name the ranks of its 3 workers"),
    "step": (says("step", value=10**30), "step: Input should be"),
    "another step": (says("step", value=7), "is of step 7, but the name of the folder says another step"),
    "nan": (at(*OWN, "options", 0, "lr", value=float("nan")), "hold lr = nan for group 0"),
    "list": (at(*OWN, "options", 0, "lr", value=[1]), "hold lr = [1] for group 0"),
    "other tensor": (at(*OWN, "buffers", "1.running_mean", value={"tensor": "generators.torch"}), "is said to be"),
    "shape": (_wide, "exp_avg of parameter 0 has the shape"),
    "scheduler": (
        at("extras", "scheduler", "_step_count", value=[1]),
        "what is kept of scheduler cannot be that of a One",
    ),
    "scheduler that is over": (
        at("extras", "scheduler", "total_steps", value=0),
        "The specified number of total steps is 0",
    ),
    "fifo": (_fifo, "rank-0.safetensors is not a regular file"),
    "fifo manifest": (_manifest_fifo, "manifest.json is not a regular file"),
    "folder": (_folder, "model.safetensors is not a regular file"),
    "link": (_link, "rank-0.safetensors is not a regular file"),
    "giant": (_giant, "manifest.json has 1099511627776 bytes, and at most"),
    "giant model": (_giant_model, "model.safetensors has 1099511627776 bytes, but"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_the_one_before_is_used(
    how: str, kept: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, newest = copied(kept, "all-reduce", tmp_path)
    change, words = HOSTILE[how]
    change(newest)
    first = choose(root)
    if first.name == "step-00000003":  # nothing is opened
        (said,) = first.sentences
    else:
        ends = outcomes(root, "all-reduce")
        assert [end.error for end in ends] == [None, None]
        assert [end.result.began for end in ends] == [3, 3]
        (said,) = [line for line in capsys.readouterr().err.splitlines() if "refused" in line]
    assert "the checkpoint step-00000006 was refused: " in said
    assert words in said
    assert "step-00000003 is used instead" in said


def test_what_only_does_not_load_here_is_not_removed(kept: dict[str, Path], tmp_path: Path) -> None:
    """It may be right for another script."""
    root, newest = copied(kept, "all-reduce", tmp_path)
    at(*OWN, "options", 0, "lr", value=[1])(newest)
    in_world(2, root, lambda world: train(world, 5, saves=lambda rank, step: step == 4))
    assert sorted(path.name for path in root.iterdir()) == ["step-00000004", "step-00000006"]
    assert choose(root).name == "step-00000006"


def test_a_tree_can_be_written_anew(kept: dict[str, Path], tmp_path: Path) -> None:
    """These tests change nothing else."""
    root, newest = copied(kept, "all-reduce", tmp_path)
    change_tree(newest, RANK, lambda tree: put(tree, *OWN, "step", value=inside(tree, *OWN, "step")))
    assert [end.result.began for end in outcomes(root, "all-reduce")] == [6, 6]
