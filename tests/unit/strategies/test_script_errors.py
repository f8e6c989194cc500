"""A script that raises on one worker: an error that all are told of, unless a strategy was asked to go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.strategies import strategies
from quorate.wire import current
from quorate.wire.virtual import Outcome, VirtualWorld
from tests.support.scene import Scene, Trainer

STEPS, AT = 12, 5


class OfTheScript(Exception):
    """What no library knows."""


def outcomes(strategy: str, how: str, **settings: Any) -> list[Outcome[Any]]:
    """What becomes of three workers when the second one raises, or is gone, after some steps."""

    def before(trainer: Trainer) -> None:
        if trainer.step == AT and trainer.rank == 1:
            if how == "is gone":
                trainer.wire.crash()
            raise SystemExit(5) if how == "exits" else OfTheScript("bad sample")

    loss = lambda trainer: trainer.model(torch.randn(4, 3)).square().mean()  # noqa: E731
    fields: Any = {"model": (3, 2), "rate": 0.01, "steps": STEPS, "loss": loss, "before": before}
    return Scene(strategy, world={"generators": True}, **fields, **settings).outcomes(lambda trainer: trainer.step)


def outlives(strategy: str) -> bool:
    return strategies.get(strategy)().on_death == "continue"


@pytest.mark.parametrize("strategy", sorted(strategies))
@pytest.mark.parametrize("how", ["raises", "exits"])
def test_all_stop(strategy: str, how: str) -> None:
    found = outcomes(strategy, how)
    for rank in (0, 2):
        assert isinstance(found[rank].error, PeerFailed), found[rank]
        assert "rank 1 (host virtual) raised" in str(found[rank].error)


@pytest.mark.parametrize("strategy", sorted(name for name in strategies if outlives(name)))
@pytest.mark.parametrize("how", ["raises", "is gone"])
def test_the_others_go_on_where_that_was_asked_for(strategy: str, how: str) -> None:
    settings = {"on_error": "continue"} if how == "raises" else {}
    found = outcomes(strategy, how, **settings)
    assert [found[rank].result for rank in (0, 2)] == [STEPS, STEPS]


@pytest.mark.parametrize("strategy", sorted(strategies))
def test_it_goes_with_going_on_at_a_death(strategy: str) -> None:
    kind: Any = strategies.get(strategy)
    refused = {} if not outlives(strategy) else {"on_death": "stop"}
    with pytest.raises(ConfigurationError, match='on_error="continue" needs a strategy that goes on when a worker'):
        kind(on_error="continue", **refused)


def test_of_several_trainings_one_that_stops_is_enough() -> None:
    def task(wire: Any) -> None:
        current.enter(wire, thread_only=True)
        world = quorate.join()
        models = [torch.nn.Linear(2, 1) for _ in range(2)]
        both: list[Any] = [
            quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "quorum", on_error=on_error)
            for model, on_error in zip(models, ("stop", "continue"), strict=True)
        ]
        for step in range(STEPS):
            if step == AT and world.rank == 1:
                raise OfTheScript
            for model, optimizer in zip(models, both, strict=True):
                model(torch.randn(4, 2)).square().mean().backward()
                optimizer.step()
        for optimizer in both:
            optimizer.finish()

    found = VirtualWorld(3, generators=True).outcomes(task)
    assert isinstance(found[0].error, PeerFailed)
    assert isinstance(found[2].error, PeerFailed)
