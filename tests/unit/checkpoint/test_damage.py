"""Files on a disk are trusted only if they are as written: others are refused, and the checkpoint before is used."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.folder import MANIFEST, complete_ones, verify
from quorate.checkpoint.loading import choose
from quorate.checkpoint.participants import CheckpointContext
from quorate.checkpoint.saving import saving
from quorate.checkpoint.tensor_file import FileOutput
from quorate.core.errors import CheckpointError
from quorate.launch.worker.world import World
from quorate.wire import current
from tests.support.kept_trainings import in_world, train


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of steps 3 and 6."""
    root = tmp_path_factory.mktemp("kept")
    in_world(2, root, lambda world: train(world, 7, saves=lambda rank, step: step % 3 == 0))
    return root


@pytest.fixture
def root(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "kept"))


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def test_both_are_what_was_written(root: Path) -> None:
    assert [path.name for path in complete_ones(root)] == ["step-00000006", "step-00000003"]
    assert verify(root / "step-00000006")["step"] == 6
    assert choose(root).name == "step-00000006"


@pytest.mark.seeds(20, 100)
def test_a_flipped_bit_is_refused(seed: int, root: Path) -> None:
    draw = random.Random(seed)
    newest = complete_ones(root)[0]
    files = sorted(newest.iterdir())
    path = draw.choices(files, [file.stat().st_size for file in files])[0] if seed % 2 else draw.choice(files)
    flip(path, draw.randrange(8 * path.stat().st_size))
    choice = choose(root)
    assert (choice.name, choice.refused) == ("step-00000003", ["step-00000006"])
    assert path.name in choice.sentences[0]


def _missing(folder: Path) -> str:
    (folder / "optimizer.safetensors").unlink()
    return "optimizer.safetensors is missing"


def _no_manifest(folder: Path) -> str:
    (folder / MANIFEST).unlink()
    return "manifest.json is missing"


def _empty_manifest(folder: Path) -> str:
    (folder / MANIFEST).write_bytes(b"")
    return "manifest.json cannot be read"


def _swapped(folder: Path) -> str:
    first, second = folder / "rank-0.safetensors", folder / "rank-1.safetensors"
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    return "rank-0.safetensors"


def _of_the_one_before(folder: Path) -> str:
    shutil.copy(folder.parent / "step-00000003" / "model.safetensors", folder / "model.safetensors")
    return "model.safetensors is damaged"


def _cut_off(folder: Path) -> str:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size // 2)
    return "model.safetensors has"


def _longer(folder: Path) -> str:
    with open(folder / "model.safetensors", "ab") as file:
        file.write(b"\0")
    return "model.safetensors has"


def _later(folder: Path) -> str:
    said = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**said, "format": 2}))
    return "it has the format 2, but this version of quorate reads formats up to 1"


def _edited(folder: Path) -> str:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"step": 6', '"step": 7'))
    return "manifest.json was changed"


DAMAGES = [
    _missing, _no_manifest, _empty_manifest, _swapped, _of_the_one_before, _cut_off, _longer, _later, _edited,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_the_one_before_is_used(damage: Callable[[Path], str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = damage(complete_ones(root)[0])
    ends = in_world(2, root, lambda world: train(world, 9))
    said = capsys.readouterr().err
    assert [end.began for end in ends] == [3, 3]
    assert f"the checkpoint step-00000006 was refused: {words}" in said
    assert said.count("refused") == 1


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_where_none_is_left_the_error_says_why(damage: Callable[[Path], str], root: Path) -> None:
    shutil.rmtree(root / "step-00000006") if damage is not _of_the_one_before else None
    if damage is _of_the_one_before:
        flip(root / "step-00000003" / "rank-0.safetensors", 5000)
    words = damage(complete_ones(root)[0])

    def task(world: World) -> None:
        with pytest.raises(CheckpointError, match="no checkpoint in .* can be used") as raised:
            train(world, 9)
        assert words.replace('"step": 6', '"step": 3') in str(raised.value)

    if damage is _edited:
        (root / "step-00000003" / MANIFEST).write_text("{}")
        words = "manifest.json"
    in_world(2, root, task)


def test_a_refused_one_makes_room_for_the_next(root: Path) -> None:
    flip(root / "step-00000006" / "model.safetensors", 4000)
    in_world(2, root, lambda world: train(world, 7, saves=lambda rank, step: step in (4, 6)))
    assert [path.name for path in complete_ones(root)] == ["step-00000006-2", "step-00000004"]
    assert choose(root).refused == []


def test_another_model_is_refused_with_its_first_difference(root: Path) -> None:
    def task(world: World, model: torch.nn.Module, words: str) -> None:
        quorate.distribute(torch.optim.AdamW(model.parameters()), model)
        with pytest.raises(CheckpointError, match=words):
            quorate.load()

    smaller = torch.nn.Sequential(torch.nn.Linear(3, 6))
    wider = torch.nn.Sequential(
        torch.nn.Linear(3, 7), torch.nn.BatchNorm1d(7), torch.nn.Tanh(), torch.nn.Dropout(), torch.nn.Linear(7, 1)
    )
    in_world(1, root, lambda world: task(world, smaller, "the checkpoint's model has a .*, and the script's has none"))
    in_world(1, root, lambda world: task(world, wider, r"has the shape \(6.*\) in the checkpoint, but \(7.*\) here"))


class Cut(FileOutput):
    """A disk that is full, or a process that is gone, after so many bytes."""

    left = 0

    def write(self, data: Any) -> None:
        rest = memoryview(data).cast("B")
        super().write(rest[: Cut.left])
        if len(rest) > Cut.left:
            Cut.left = 0
            raise OSError(28, "No space left on device")
        Cut.left -= len(rest)


@pytest.mark.seeds(10, 40)
def test_a_write_that_is_cut_off_anywhere_leaves_the_one_before(seed: int, root: Path) -> None:
    """At random byte offsets of all that the workers write, one file after the other."""
    newest = complete_ones(root)[0]
    total = sum(path.stat().st_size for path in newest.iterdir())
    Cut.left = random.Random(seed).randrange(total - 1)
    sentences: list[str] = []

    def task(world: World) -> Any:
        current.here().context(CheckpointContext).listeners = [sentences.append]
        return train(world, 9, saves=saves)

    def saves(rank: int, step: int) -> bool:
        saving(current.here()).opened = Cut
        return step == 8

    ends = in_world(2, root, task)
    assert [end.began for end in ends] == [6, 6]
    assert sentences
    assert "a checkpoint could not be written, and the previous one stays the newest" in sentences[0]
    assert [path.name for path in complete_ones(root)] == ["step-00000006", "step-00000003"]
    assert choose(root).name == "step-00000006"
    assert sorted(path.name for path in root.iterdir()) == ["step-00000003", "step-00000006"]
