"""Something else updates the parameters of a distributed optimizer: told while it trains, refused at its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

WORDS = "parameters of the distributed SGD were updated after {} backward passes, and its step"


class Wrapper:
    """An optimizer of its own over the groups of another one, like sharpness-aware minimisation."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.base = torch.optim.AdamW(optimizer.param_groups)

    def step(self) -> None:
        self.base.step()


def train(wire: Wire, name: str, steps: int, *, wraps: bool, finishes: bool) -> str | None:
    current.enter(wire, thread_only=True)
    quorate.join()
    model = nn.Linear(3, 1)
    own: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, name)
    stepped = Wrapper(own) if wraps else own
    try:
        for _ in range(steps):
            model(torch.randn(2, 3)).square().mean().backward()
            stepped.step()
            own.zero_grad()
        own.finish() if finishes else current.here().leave()
    except ConfigurationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("finishes", [True, False])
def test_it_is_told_once_and_refused_at_the_end(finishes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    said = VirtualWorld(2, timeout=5.0).run(lambda wire: train(wire, "all-reduce", 15, wraps=True, finishes=finishes))
    assert all(sentence is not None and sentence.startswith(WORDS.format(15)) for sentence in said)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" backward")[0] for line in sorted(lines)] == [
        f"quorate: rank {rank}: {WORDS.format(10).partition(' backward')[0]}" for rank in (0, 1)
    ]


@pytest.mark.parametrize("name", ["quorum", "local-sgd", "d-psgd"])
def test_it_ends_the_training_where_gradients_are_each_workers_own(name: str) -> None:
    said = VirtualWorld(2, timeout=5.0).run(lambda wire: train(wire, name, 15, wraps=True, finishes=True))
    assert all(sentence is not None and sentence.startswith(WORDS.format(5)) for sentence in said)


def test_nothing_is_said_of_one_that_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert VirtualWorld(2).run(lambda wire: train(wire, "quorum", 15, wraps=False, finishes=True)) == [None, None]
    assert not capsys.readouterr().err


def test_nothing_is_said_where_gradients_add_up_or_another_distributed_one_has_its_turn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @joined
    def live(world: quorate.World) -> None:
        model = nn.Linear(3, 1)
        first: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        second: Any = quorate.distribute(torch.optim.Adam(model.parameters()), model)
        third = nn.Linear(3, 1)
        gathers: Any = quorate.distribute(torch.optim.Adam(third.parameters()), third)
        for _ in range(15):
            model(torch.randn(2, 3)).square().mean().backward()
            third(torch.randn(2, 3)).square().mean().backward()
            first.step()
            first.zero_grad()
        second.step()
        current.here().leave()
        assert gathers.state_dict()["state"] == {}

    VirtualWorld(2).run(live)
    assert not capsys.readouterr().err
