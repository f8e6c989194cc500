"""Muon for matrices and AdamW for the rest, two optimizers on one model, under every strategy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from quorate.strategies import strategies
from tests.contract.test_ordinary_optimizers_kept import of_matrices_and_the_rest, step_all
from tests.support.every_strategy import NAMES, OF_ONE_TENSOR
from tests.support.kept_trainings import in_world
from tests.support.ordinary_loops import loss_of, small_net

STEPS, SAVED = 24, 12
REFUSING = {
    "dana": 'momentum="worker" is for torch.optim.SGD',
    **dict.fromkeys(("one-bit-adam", "one-bit-lamb", "zero-one-adam"), "whose momentum it encodes"),
}
"""The sentences of those that refuse Muon."""
BY_ARRIVAL = frozenset(name for name in NAMES if strategies.get(name).meets in ("asks", "servers", "nobody")) | {
    "async-local-sgd", "backup-workers", "bounded-staleness", "eager-majority", "eager-solo", "fed-buff",
    "relay", "sync-backup",
}  # fmt: skip
"""Those under which a step depends on who comes first, which is another worker after a pause."""


def settings(name: str) -> dict[str, Any]:
    """Local steps between means few enough that there are some."""
    fields = {field.name for field in dataclasses.fields(strategies.get(name))}
    return {**OF_ONE_TENSOR.get(name, {}), **({"sync_every": 4} if "sync_every" in fields else {})}


def held_out(model: torch.nn.Module) -> float:
    with torch.no_grad():
        return sum(float(loss_of(model, 9, 1000 + step)) for step in range(20)) / 20


def trained(name: str, steps: int, world: quorate.World) -> tuple[float, torch.Tensor]:
    """The loss at the end beside that of the beginning, and all parameters with the state of both optimizers."""
    model = small_net()
    begin = held_out(model)
    plain = of_matrices_and_the_rest(model)
    optimizers = [quorate.distribute(each, model, name, **settings(name)) for each in plain]
    for step in range(quorate.load() or 0, steps):
        step_all(model, optimizers, world, step, 0.01)
        if step + 1 == SAVED:
            quorate.save()
    for optimizer in optimizers:
        optimizer.finish()
    state = [x for each in plain for of in each.state.values() for x in of.values() if isinstance(x, torch.Tensor)]
    numbers = [x.detach().reshape(-1).double() for x in (*model.parameters(), *state)]
    return held_out(model) / begin, torch.cat(numbers)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSING])
def test_both_learn_end_equal_and_are_resumed(name: str, tmp_path: Path) -> None:
    unbroken = in_world(3, tmp_path / "unbroken", lambda world: trained(name, STEPS, world))
    in_world(3, tmp_path / "cut", lambda world: trained(name, SAVED, world))
    resumed = in_world(3, tmp_path / "cut", lambda world: trained(name, STEPS, world))
    count = sum(p.numel() for p in small_net().parameters())
    for ends in (unbroken, resumed):
        assert all(ratio < 0.9 for ratio, _ in ends)
        assert all(torch.equal(numbers[:count], ends[0][1][:count]) for _, numbers in ends)
    if name not in BY_ARRIVAL:
        for (_, before), (_, after) in zip(unbroken, resumed, strict=True):
            assert torch.equal(before, after)


@pytest.mark.parametrize("name", REFUSING)
def test_others_refuse_muon_in_a_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=REFUSING[name]):
        in_world(2, tmp_path, lambda world: trained(name, 1, world))
