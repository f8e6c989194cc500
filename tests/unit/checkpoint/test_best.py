"""`save(keep=, best=)` keeps the newest checkpoints and the best one, and `load(best=True)` goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.folder import MANIFEST, complete_ones, read_manifest
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.launch.worker.world import World
from tests.support.kept_trainings import in_world, net

NO_SAVE: Any = "this worker does not save"


def steps_and_saves(
    world: World, values: Sequence[float | None], *, keep: int = 2, strategy: Any = "all-reduce", **load: Any
) -> int | None:
    """Go on from a checkpoint; then make a step for each value, and save with it."""
    model = net(0)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy)
    began = quorate.load(**load)
    for value in values:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        if value is not NO_SAVE:
            quorate.save(keep=keep, best=value)
    optimizer.finish()
    return began


def kept(root: Path) -> dict[int, float | None]:
    """The value of each complete checkpoint, by step."""
    manifests = [read_manifest(path) for path in complete_ones(root)]
    return {manifest["step"]: manifest.get("best") for manifest in reversed(manifests)}


def run(size: int, root: Path, values: Sequence[float | None], **choices: Any) -> list[int | None]:
    return in_world(size, root, lambda world: steps_and_saves(world, values, **choices))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
def test_it_is_loaded_after_the_training_that_has_saved_it(size: int, strategy: str, tmp_path: Path) -> None:
    def live(world: World) -> tuple[int | None, ...]:
        model = net(0)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy)
        for value in (0.1, 0.9, 0.5):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            quorate.save(best=value)
        optimizer.finish()
        return quorate.load(best=True), quorate.load()

    assert in_world(size, tmp_path, live) == [(2, 3)] * size
    assert list(kept(tmp_path).values()) == [0.9, 0.5]


@pytest.mark.parametrize("size", [1, 2])
def test_so_many_of_the_newest_are_kept(size: int, tmp_path: Path) -> None:
    run(size, tmp_path, [None] * 5, keep=3)
    assert kept(tmp_path) == {3: None, 4: None, 5: None}
    run(size, tmp_path, [None], keep=1)
    assert kept(tmp_path) == {6: None}


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "local-sgd"])
def test_the_best_is_kept_beside_them(strategy: str, tmp_path: Path) -> None:
    run(2, tmp_path, [0.5, 0.9, 0.9, float("nan"), 0.1, 0.2], strategy=strategy)
    assert list(kept(tmp_path).values()) == [0.9, 0.1, 0.2]


def test_a_value_of_some_workers_counts_for_all(tmp_path: Path) -> None:
    in_world(2, tmp_path, lambda world: steps_and_saves(world, [[1.0, 0.5, 0.25, 0.125], [None] * 4][world.rank]))
    assert kept(tmp_path) == {1: 1.0, 3: 0.25, 4: 0.125}


def test_a_value_counts_for_one_checkpoint(tmp_path: Path) -> None:
    values = [[0.9, NO_SAVE, NO_SAVE], [None, NO_SAVE, None]]
    in_world(2, tmp_path, lambda world: steps_and_saves(world, values[world.rank], strategy="quorum"))
    assert list(kept(tmp_path).values()) == [0.9, None]


def test_the_largest_number_of_all_workers_is_kept(tmp_path: Path) -> None:
    in_world(2, tmp_path, lambda world: steps_and_saves(world, [None] * 5, keep=3 + world.rank))
    assert len(kept(tmp_path)) == 4


@pytest.mark.parametrize("size", [1, 2])
def test_a_training_goes_on_from_the_best(size: int, tmp_path: Path) -> None:
    run(size, tmp_path, [0.5, 0.9, 0.1, 0.2, 0.3])
    assert kept(tmp_path) == {2: 0.9, 4: 0.2, 5: 0.3}
    assert run(size, tmp_path, [], best=True) == [2] * size
    assert kept(tmp_path) == {2: 0.9, 4: 0.2, 5: 0.3}, "nothing is removed before there is a newer one"
    assert run(size, tmp_path, [0.7], best=True) == [2] * size
    assert kept(tmp_path) == {2: 0.9, 3: 0.7}
    assert run(size, tmp_path, []) == [3] * size


def test_a_damaged_best_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(1, tmp_path, [0.5, 0.9, 0.1, 0.2], keep=4)
    (tmp_path / "step-00000002" / "model.safetensors").unlink()
    assert run(1, tmp_path, [], best=True) == [1]
    assert "step-00000002 was refused: model.safetensors is missing; step-00000001 is used" in capsys.readouterr().err


def test_a_checkpoint_without_a_readable_manifest_is_not_the_best(tmp_path: Path) -> None:
    run(1, tmp_path, [0.9, 0.5])
    (tmp_path / "step-00000001" / MANIFEST).write_text("{}")
    run(1, tmp_path, [0.4, 0.3])
    assert kept(tmp_path) == {2: 0.5, 3: 0.4, 4: 0.3}


def test_without_a_value_there_is_no_best(tmp_path: Path) -> None:
    assert run(1, tmp_path, [], best=True) == [None]
    run(1, tmp_path, [None])
    with pytest.raises(CheckpointError, match=r"has a value; give one to quorate.save\(best=...\)"):
        run(1, tmp_path, [], best=True)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"keep": 0}, "keep is a number of checkpoints (at least 1), not 0"),
        ({"keep": True}, "keep is a number of checkpoints (at least 1), not True"),
        ({"best": "accuracy"}, "best is a number, the larger the better, not 'accuracy'"),
        ({"best": torch.ones(2)}, "best is a number, the larger the better, not tensor([1., 1.])"),
    ],
)
def test_wrong_values_are_refused(choices: dict[str, Any], words: str, tmp_path: Path) -> None:
    def save(world: World) -> None:
        with pytest.raises(ConfigurationError) as raised:
            quorate.save(**choices)
        assert str(raised.value) == words
        with pytest.raises(ConfigurationError, match="leave them out beside a path"):
            quorate.save(tmp_path / "model.pt", keep=3)
        with pytest.raises(ConfigurationError, match="leave it out beside a path"):
            quorate.load(tmp_path / "model.pt", best=True)

    in_world(1, tmp_path, save)
