"""Parameters in common in checkpoints: one model, and each worker's own optimizer state."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import quorate
from quorate.checkpoint.folder import complete_ones
from tests.support.kept_trainings import in_world, train
from tests.support.scene import Scene, Trainer, ones, zeros

STEPS = 17


def momentum(trainer: Trainer) -> torch.Tensor:
    return trainer.optimizer.state[trainer.model.weight]["momentum_buffer"].clone()


def play(trainer: Trainer) -> tuple[int | None, list[torch.Tensor]]:
    """Each worker's momentum after the last steps, and the weights; before, if it goes on, the momentum there."""
    seen = [] if trainer.began is None else [momentum(trainer)]
    seen.append(momentum(trainer.train(trainer.scene.steps)))
    with trainer.world.evaluate():
        return trainer.began, [*seen, trainer.model.weight.detach().clone()]


def trained(size: int, root: Path, steps: int, name: str = "hogwild") -> list[tuple[int | None, list[torch.Tensor]]]:
    """Trainings of so many steps, of which the fifth is kept."""
    model, loss = (
        (lambda: torch.nn.Linear(2, 1, bias=False)),
        (lambda t: t.model(torch.ones(1, 2)).sum() * (1.0 + t.rank)),
    )
    fields: Any = {"rate": 0.01, "heavy": 0.5, "steps": steps, "pause": 0.01, "saves": [5], "loads": True}
    return Scene(name, size, model=model, loss=loss, root=root, **fields).act(play)


def test_what_was_cut_off_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = trained(2, tmp_path / "whole", 9)
    trained(2, tmp_path / "cut", 7)
    again = trained(2, tmp_path / "cut", 9)
    for (_, uninterrupted), (began, resumed) in zip(whole, again, strict=True):
        assert began == 5
        assert torch.equal(uninterrupted[0], resumed[1])
        assert torch.allclose(uninterrupted[1], resumed[2], atol=1e-7)
    momenta = [tensors[0] for _, tensors in again]
    assert torch.equal(momenta[1], 2 * momenta[0]), "each has its own"


def summed(root: Path, sleeps: float = 0.0, **steps: Any) -> None:
    """Every step of every worker takes 1 off the one weight; whoever writes the model down takes his time."""

    def begin(trainer: Trainer) -> None:
        trainer.model.register_state_dict_pre_hook(lambda *_: trainer.clock.sleep(sleeps))

    def before(trainer: Trainer) -> None:
        if trainer.step == 5:
            quorate.save()

    Scene("hogwild", model=zeros(), rate=1.0, loss=ones, root=root, begin=begin, before=before, **steps).run()


def kept_weight(folder: Path) -> float:
    (kept,) = complete_ones(folder)
    return float(load_file(kept / "model.safetensors")["weight"])


def test_what_others_go_on_with_is_not_in_it(tmp_path: Path) -> None:
    summed(tmp_path, steps=8, sleeps=1.0)
    assert kept_weight(tmp_path) == -15.0


def test_who_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    summed(tmp_path, steps=(2, 8, 8))
    assert kept_weight(tmp_path) == -12.0


def test_the_model_is_kept_once(tmp_path: Path) -> None:
    trained(3, tmp_path, 6)
    (kept,) = complete_ones(tmp_path)
    own = sorted(path.stat().st_size for path in kept.glob("rank-*"))
    assert len(own) == 3
    assert all(not any("parameters" in name for name in load_file(path)) for path in kept.glob("rank-*.safetensors"))
    assert list(load_file(kept / "model.safetensors")) == ["weight"]


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (1, 2), (2, 1)])
def test_another_number_of_workers_goes_on_from_the_model(before: int, after: int, tmp_path: Path) -> None:
    ends = trained(before, tmp_path, 5)
    for began, (momentum, last, weight) in trained(after, tmp_path, 5):
        assert began == 5
        assert torch.equal(weight, ends[0][1][1])
        assert any(torch.equal(momentum, tensors[0]) for _, tensors in ends)
        assert torch.equal(momentum, last)


@pytest.mark.parametrize(("before", "after"), [("d-psgd", "hogwild"), ("hogwild", "d-psgd"), ("all-reduce", "hogwild")])
def test_another_strategy_goes_on_from_the_mean(before: str, after: str, tmp_path: Path) -> None:
    ends = trained(2, tmp_path, 5, before)
    ends_after = trained(2, tmp_path, 5, after)
    assert all(began == 5 for began, _ in ends_after)
    assert torch.equal(ends_after[0][1][2], ends_after[1][1][2])
    assert torch.allclose(ends_after[0][1][2], ends[0][1][-1])


def test_a_training_of_all_kinds_of_state_goes_on(tmp_path: Path) -> None:
    task = partial(train, saves=lambda rank, step: step in (4, 8), strategy="hogwild")
    in_world(2, tmp_path, lambda world: task(world, 11))
    for end in in_world(2, tmp_path, lambda world: task(world, STEPS)):
        assert end.began == 8
        assert all(bool(torch.isfinite(x).all()) for x in end.state)
