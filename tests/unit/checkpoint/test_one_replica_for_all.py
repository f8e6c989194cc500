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
from quorate.launch.worker.world import World
from tests.support.kept_trainings import in_world, train

STEPS = 17


def trained(world: World, steps: int, name: str = "hogwild") -> tuple[int | None, list[torch.Tensor]]:
    """Each worker's parameters and momentum after so many steps, of which the fifth is kept."""
    model = torch.nn.Linear(2, 1, bias=False)
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    optimizer: Any = quorate.distribute(plain, model, name, with_one_worker="algorithm")
    began = quorate.load()
    seen = [] if began is None else [optimizer.state[model.weight]["momentum_buffer"].clone()]
    for step in range(began or 0, steps):
        optimizer.zero_grad()
        (model(torch.ones(1, 2)) * (1.0 + world.rank)).sum().backward()
        world.wire.clock.sleep(0.01)
        optimizer.step()
        if step == 4:
            quorate.save()
    seen += [optimizer.state[model.weight]["momentum_buffer"].clone()]
    with world.evaluate():
        seen.append(model.weight.detach().clone())
    return began, seen


def test_what_was_cut_off_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = in_world(2, tmp_path / "whole", partial(trained, steps=9))
    in_world(2, tmp_path / "cut", partial(trained, steps=7))
    again = in_world(2, tmp_path / "cut", partial(trained, steps=9))
    for (_, uninterrupted), (began, resumed) in zip(whole, again, strict=True):
        assert began == 5
        assert torch.equal(uninterrupted[0], resumed[1])
        assert torch.allclose(uninterrupted[1], resumed[2], atol=1e-7)
    momenta = [tensors[0] for _, tensors in again]
    assert torch.equal(momenta[1], 2 * momenta[0]), "each has its own"


def summed(world: World, steps: int, saves_at: int, sleeps: float = 0.0) -> None:
    """Every step of every worker takes 1 off the one weight; whoever writes the model down takes his time."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model, "hogwild")
    model.register_state_dict_pre_hook(lambda *_: world.wire.clock.sleep(sleeps))
    for step in range(steps):
        if step == saves_at:
            quorate.save()
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    optimizer.finish()


def kept_weight(folder: Path) -> float:
    (kept,) = complete_ones(folder)
    return float(load_file(kept / "model.safetensors")["weight"])


def test_what_others_go_on_with_is_not_in_it(tmp_path: Path) -> None:
    in_world(3, tmp_path, partial(summed, steps=8, saves_at=5, sleeps=1.0))
    assert kept_weight(tmp_path) == -15.0


def test_who_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    in_world(3, tmp_path, lambda world: summed(world, steps=8 if world.rank else 2, saves_at=5))
    assert kept_weight(tmp_path) == -12.0


def test_the_model_is_kept_once(tmp_path: Path) -> None:
    in_world(3, tmp_path, partial(trained, steps=6))
    (kept,) = complete_ones(tmp_path)
    own = sorted(path.stat().st_size for path in kept.glob("rank-*"))
    assert len(own) == 3
    assert all(not any("parameters" in name for name in load_file(path)) for path in kept.glob("rank-*.safetensors"))
    assert list(load_file(kept / "model.safetensors")) == ["weight"]


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (1, 2), (2, 1)])
def test_another_number_of_workers_goes_on_from_the_model(before: int, after: int, tmp_path: Path) -> None:
    ends = in_world(before, tmp_path, partial(trained, steps=5))
    for began, (momentum, last, weight) in in_world(after, tmp_path, partial(trained, steps=5)):
        assert began == 5
        assert torch.equal(weight, ends[0][1][1])
        assert any(torch.equal(momentum, tensors[0]) for _, tensors in ends)
        assert torch.equal(momentum, last)


@pytest.mark.parametrize(("before", "after"), [("d-psgd", "hogwild"), ("hogwild", "d-psgd"), ("all-reduce", "hogwild")])
def test_another_strategy_goes_on_from_the_mean(before: str, after: str, tmp_path: Path) -> None:
    ends = in_world(2, tmp_path, partial(trained, steps=5, name=before))
    ends_after = in_world(2, tmp_path, partial(trained, steps=5, name=after))
    assert all(began == 5 for began, _ in ends_after)
    assert torch.equal(ends_after[0][1][2], ends_after[1][1][2])
    assert torch.allclose(ends_after[0][1][2], ends[0][1][-1])


def test_a_training_of_all_kinds_of_state_goes_on(tmp_path: Path) -> None:
    task = partial(train, saves=lambda rank, step: step in (4, 8), strategy="hogwild")
    in_world(2, tmp_path, lambda world: task(world, 11))
    for end in in_world(2, tmp_path, lambda world: task(world, STEPS)):
        assert end.began == 8
        assert all(bool(torch.isfinite(x).all()) for x in end.state)
