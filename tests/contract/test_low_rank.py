"""Low rank from some step on, under every strategy: the same bits on all workers, and a training that goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.every_strategy import NAMES, OF_ADAM, optimizer_of
from tests.support.scene import Scene, Trainer, net

AT, STEPS = 5, 12


def switching(trainer: Trainer) -> None:
    """Let the layer in the middle be in two factors after some steps."""
    quorate.shrink.low_rank(trainer.optimizer, rank=2, layers=["2"], at=AT)


def loss(trainer: Trainer) -> torch.Tensor:
    """A loss of inputs that all workers have alike, as some strategies compute a batch on several workers."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(trainer.step))
    return (trainer.model(x) - x[:, :3]).square().mean()


@pytest.mark.parametrize("name", NAMES)
def test_all_workers_go_on_from_equal_factors(name: str) -> None:
    def after(trainer: Trainer) -> None:
        if trainer.step == AT:
            trainer.seen.append({name: x.clone() for name, x in trainer.model.state_dict().items()})

    scene = Scene(
        name,
        3,
        model=lambda: net(6, 8, 8, 3),
        begin=switching,
        after=after,
        loss=loss,
        steps=STEPS,
        make=lambda ps: optimizer_of(name, ps, lr=0.05, momentum=0.5),
    )
    if name in OF_ADAM:
        with pytest.raises(ConfigurationError, match="cannot be combined with"):
            scene.run()
        return
    trainers = scene.run()
    states: list[dict[str, Any]] = [trainer.seen[0] for trainer in trainers]
    assert all(torch.equal(state["2.weight_b"], states[0]["2.weight_b"]) for state in states)
    assert all(torch.equal(trainer.parameters, trainers[0].parameters) for trainer in trainers)
    assert trainers[0].model[2].weight_a.shape == (2, 8) and isinstance(trainers[0].model[2], nn.Linear)
    assert not torch.equal(trainers[0].model[2].weight_a.detach(), states[0]["2.weight_a"])
    assert trainers[0].parameters.isfinite().all()
