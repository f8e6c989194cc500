"""Exports are read by other libraries, and files of other libraries begin a training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import quorate
from quorate.core.errors import CheckpointError, ConfigurationError
from tests.support.scene import Scene, Trainer


def plainly(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """In a plain script."""
    model, optimizer = made(1)
    for number in range(steps):
        step(model, optimizer, number)
    return model, optimizer


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.allclose(a.double(), b.double(), atol=1e-6) for a, b in zip(some, others, strict=True))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def loss_of(model: nn.Module, number: int) -> Tensor:
    return model(torch.randn(8, 3, generator=torch.Generator().manual_seed(number))).square().mean()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()


def numbers(model: nn.Module) -> list[Tensor]:
    return [x.detach().clone() for x in model.state_dict().values()]


def scene(size: int = 2, seed: int = 1, **settings: Any) -> Scene:
    """All workers have the same batches, so they make the steps of one."""

    def begin(trainer: Trainer) -> None:
        trainer.rates = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1000)

    make, loss = partial(torch.optim.AdamW, lr=0.05), (lambda t: loss_of(t.model, t.step))
    hooks: Any = {"begin": begin, "after": lambda trainer: trainer.rates.step()}
    return Scene(size=size, seed=seed, model=net, **hooks, **{"make": make, "loss": loss, **settings})


def goes_on(path: Path, until: int) -> list[tuple[int | None, list[Tensor]]]:
    def script(trainer: Trainer) -> tuple[int | None, list[Tensor]]:
        begin = quorate.load(path, rates=trainer.rates)
        trainer.step = begin or 0
        return begin, numbers(trainer.train(until).model)

    return scene(seed=7).act(script)


def saves(path: Path, steps: int) -> list[list[Tensor]]:
    def script(trainer: Trainer) -> list[Tensor]:
        trainer.train(steps)
        quorate.save(path, rates=trainer.rates)
        return numbers(trainer.model)

    return scene().act(script)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["whole.pt", "inside/whole.pth", "weights.safetensors", "folder"])
def test_others_read_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for steps in (1, 3):  # the second time in the place of the first
        ends = saves(path, steps)
    wanted, plain = plainly(3)
    assert same(ends[0], numbers(wanted))
    model, optimizer = made(5)
    if name.endswith(".safetensors"):
        model.load_state_dict(load_file(path))
    elif name == "folder":
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=path, no_dist=True)
        model.load_state_dict(state["model"])
    else:
        saved = torch.load(path, weights_only=True)
        assert saved["step"] == 3 and saved["rates"]["last_epoch"] == 3
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step(model, optimizer, 3)
        step(wanted, plain, 3)
    assert same(numbers(model), numbers(wanted))
    assert [path_left.name for path_left in path.parent.iterdir()] == [path.name], "nothing is left beside it"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("make", [partial(torch.optim.SGD, lr=0.05), partial(torch.optim.AdamW, lr=0.05)])
def test_a_folder_is_written_and_read_without_a_step(tmp_path: Path, make: Any, steps: int) -> None:
    """torch makes a step of an optimizer that has neither a state nor gradients, on the one worker that writes."""

    def script(trainer: Trainer) -> list[Tensor]:
        trainer.train(steps)
        trainer.optimizer.zero_grad()
        quorate.save(tmp_path / "folder")
        assert quorate.load(tmp_path / "folder") == steps
        assert len(trainer.optimizer.state) == 0 or steps
        return numbers(trainer.train(4).finish().model)

    ends = scene(make=make).act(script)
    plain_ends = scene(make=make).act(lambda trainer: numbers(trainer.train(4).finish().model))
    assert all(same(end, plain_ends[0]) for end in ends)


@pytest.mark.parametrize("form", ["with names", "bare", "of DDP", "safetensors", "our own", "folder"])
def test_what_a_plain_script_has_written_begins_a_training(tmp_path: Path, form: str) -> None:
    model, optimizer = plainly(2)
    path, begun = tmp_path / "plain.pt", 2
    if form == "with names":
        torch.save(
            {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "step": 2}, path
        )
    elif form == "bare":
        torch.save(model.state_dict(), path)
    elif form == "of DDP":
        torch.save({f"module.{key}": x for key, x in model.state_dict().items()}, path)
    elif form == "safetensors":
        path = tmp_path / "plain.safetensors"
        save_file(dict(model.state_dict()), path)
    else:
        path = tmp_path / ("own.pt" if form == "our own" else "folder")
        saves(path, 2)
    has_optimizer = form in ("with names", "our own", "folder")
    until = 4 if has_optimizer else 0
    ends = goes_on(path, until)
    wanted, _ = plainly(4 if has_optimizer else 2)
    assert [begin for begin, _ in ends] == [begun if has_optimizer else None] * 2
    assert all(same(end, numbers(wanted)) for _, end in ends)


def test_where_replicas_differ_the_mean_is_written(tmp_path: Path) -> None:
    path = tmp_path / "mean.pt"

    def script(trainer: Trainer) -> list[Tensor]:
        trainer.train(3)
        with pytest.raises(ConfigurationError, match="under d-psgd replicas differ between steps"):
            quorate.save(path)
        with trainer.world.evaluate():
            quorate.save(path)
            return numbers(trainer.model)

    ends = scene(3, strategy="d-psgd", loss=lambda t: loss_of(t.model, 10 * t.rank + t.step)).act(script)
    assert same(list(torch.load(path, weights_only=True)["model"].values()), ends[2])


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("model.onnx", ConfigurationError, '"model.onnx" has the suffix .onnx; known: .pt and .pth'),
        ("missing.pt", CheckpointError, "there is no "),
        ("text.pt", CheckpointError, "text.pt cannot be read: "),
        ("list.pt", CheckpointError, "list.pt holds a list, and no state of a model"),
        ("other.pt", CheckpointError, "other.pt is of another model or optimizer: "),
        ("pickled.pt", CheckpointError, "pickled.pt cannot be read: "),
    ],
)
def test_refused(tmp_path: Path, name: str, error: type[Exception], words: str) -> None:
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    torch.save({"model": nn.Linear(2, 2)}, tmp_path / "pickled.pt")

    def script(trainer: Trainer) -> None:
        with pytest.raises(error) as refused:
            quorate.load(tmp_path / name)
        assert words in str(refused.value) and "\n" not in str(refused.value)

    scene(1).act(script)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def script(trainer: Trainer) -> None:
        with pytest.raises(CheckpointError, match="cannot be written: "):
            quorate.save(tmp_path / "file" / "model.pt")

    scene().act(script)
