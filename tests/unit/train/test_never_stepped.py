"""Something else updates the parameters of a distributed optimizer: told while it trains, refused at its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from tests.support.scene import Scene, Trainer, squares

WORDS = "parameters of the distributed SGD were updated after {} backward passes, and its step"


class Wrapper:
    """An optimizer of its own over the groups of another one, like sharpness-aware minimisation."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.base = torch.optim.AdamW(optimizer.param_groups)

    def step(self) -> None:
        self.base.step()


def train(name: str, *, wraps: bool, finishes: bool = True) -> list[str | None]:
    """The sentences in which a training of 15 steps is refused."""

    def script(trainer: Trainer) -> str | None:
        own = trainer.optimizer
        stepped = Wrapper(own) if wraps else own
        try:
            for _ in range(15):
                squares(trainer).backward()
                stepped.step()
                own.zero_grad()
            own.finish() if finishes else current.here().leave()
        except ConfigurationError as error:
            current.here().leaving.clear()
            return str(error)
        return None

    return Scene(name, 2, model=(3, 1), world={"timeout": 5.0}).act(script)


@pytest.mark.parametrize("finishes", [True, False])
def test_it_is_told_once_and_refused_at_the_end(finishes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    said = train("all-reduce", wraps=True, finishes=finishes)
    assert all(sentence is not None and sentence.startswith(WORDS.format(15)) for sentence in said)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" backward")[0] for line in sorted(lines)] == [
        f"quorate: rank {rank}: {WORDS.format(10).partition(' backward')[0]}" for rank in (0, 1)
    ]


@pytest.mark.parametrize("name", ["quorum", "local-sgd", "d-psgd"])
def test_it_ends_the_training_where_gradients_are_each_workers_own(name: str) -> None:
    said = train(name, wraps=True)
    assert all(sentence is not None and sentence.startswith(WORDS.format(5)) for sentence in said)


def test_nothing_is_said_of_one_that_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("quorum", wraps=False) == [None, None]
    assert not capsys.readouterr().err


def test_nothing_is_said_where_gradients_add_up_or_another_distributed_one_has_its_turn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(first: Trainer) -> None:
        second: Any = quorate.distribute(torch.optim.Adam(first.model.parameters()), first.model)
        third = Scene(model=(3, 1), make=torch.optim.Adam).trainer(first.world)
        for _ in range(15):
            squares(first).backward()
            squares(third).backward()
            first.optimizer.step()
            first.optimizer.zero_grad()
        second.step()
        current.here().leave()
        assert third.optimizer.state_dict()["state"] == {}

    Scene(size=2, model=(3, 1)).act(script)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["quorum", "local-sgd", "d-psgd"])
def test_another_optimizer_that_takes_the_place_of_one_that_stepped_ends_the_training(name: str) -> None:
    def script(trainer: Trainer) -> str | None:
        optimizer: Any = trainer.optimizer
        try:
            for step in range(30):
                if step == 4:
                    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
                for _ in range(3):
                    squares(trainer).backward()
                optimizer.step()
                optimizer.zero_grad()
        except ConfigurationError as error:
            current.here().leaving.clear()
            return str(error)
        return None

    said = Scene(name, 2, model=(3, 1), world={"timeout": 5.0}).act(script)
    assert all(sentence is not None and "its step() was not called after step 4, so" in sentence for sentence in said)


def test_weights_that_the_script_changes_between_passes_of_a_step_are_no_updates() -> None:
    def script(trainer: Trainer) -> Trainer:
        for step in range(12):
            for _ in range(8 if step else 4):
                old = [p.detach().clone() for p in trainer.model.parameters()]
                with torch.no_grad():
                    for p in trainer.model.parameters():
                        p.add_(0.01)
                squares(trainer).backward()
                with torch.no_grad():
                    for p, before in zip(trainer.model.parameters(), old, strict=True):
                        p.copy_(before)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        return trainer.finish()

    first, second = Scene("quorum", 2, model=(3, 1)).act(script)
    assert torch.equal(first.parameters, second.parameters)
