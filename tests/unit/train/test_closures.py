"""Closures: under `all-reduce` their losses are means of those who train, also when others have ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer, apart, regression

STEPS = (5, 2)


def closure_of(trainer: Trainer) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        trainer.optimizer.zero_grad()
        loss = regression(trainer)
        loss.backward()
        trainer.losses.append(loss.item())
        return loss

    return closure


def train(*, closes: bool, **choice: Any) -> list[tuple[Tensor, list[float], list[float]]]:
    """Parameters, what each step returned, and this worker's own losses."""

    def script(trainer: Trainer) -> tuple[Tensor, list[float], list[float]]:
        for step in range(STEPS[trainer.rank]):
            trainer.step = step
            closure = closure_of(trainer)
            if closes:
                trainer.seen.append(trainer.optimizer.step(closure).item())
            else:
                closure()
                trainer.optimizer.step()
        return trainer.finish().parameters, trainer.seen, trainer.losses

    return Scene(size=2, model=(3, 1), heavy=0.9, **choice).act(script)


"""The steps of each worker."""


@pytest.mark.parametrize("settings", [{}, {"on_death": "continue"}], ids=["all", "survivors"])
def test_those_that_train_on_when_others_have_ended_do_as_without_closures(settings: dict[str, Any]) -> None:
    plain, results = train(closes=False, **settings), train(closes=True, **settings)
    for (parameters, returned, own), (expected, _, losses) in zip(results, plain, strict=True):
        assert torch.equal(parameters, expected)
        assert own == losses
        means = [sum(each) / 2 for each in zip(results[0][2], results[1][2], strict=False)]
        assert returned == pytest.approx([*means, *own[len(means) :]])


def test_a_strategy_that_agrees_in_the_step_does_as_without_closures() -> None:
    scene = Scene("robust", model=(3, 1), loss=apart)
    assert torch.equal(scene.but(closure=True).end(), scene.end())


def test_an_optimizer_that_decides_by_the_loss_does_not_go_on_without_them() -> None:
    scene = Scene(size=2, model=(3, 1), make=partial(torch.optim.LBFGS, max_iter=3))

    @joined
    def live(world: quorate.World) -> str:
        trainer = scene.trainer(world)
        trainer.optimizer.step(closure_of(trainer))
        if world.rank == 0:
            with pytest.raises(ConfigurationError, match="^LBFGS asks for the loss of all workers, and some have none"):
                trainer.optimizer.step(closure_of(trainer))
            return "refused"
        trainer.finish()
        return "ended"

    first, _ = VirtualWorld(2, timeout=5.0).outcomes(live)
    assert first.result == "refused", first
