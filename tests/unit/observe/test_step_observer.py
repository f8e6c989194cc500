"""Observers of steps: one list, by phase, and only those that are due."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import nn

import quorate
from quorate.observe import step_observer
from quorate.observe.step_observer import NEVER, Observers, Phase, StepObserver
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


class Noting(StepObserver):
    def __init__(self, name: str, calls: list[str], phase: Phase = Phase.RECORD, optimizer: str | None = None) -> None:
        self.name, self.calls, self.phase, self.optimizer = name, calls, phase, optimizer

    def step_begins(self) -> None:
        self.calls.append(f"{self.name} begins")

    def step_ended(self) -> None:
        self.calls.append(f"{self.name} ended")


def test_the_order_is_that_of_the_phases() -> None:
    calls = list[str]()
    observers = Observers()
    observers.add(Noting("c", calls), Noting("a", calls, Phase.SAVE))
    observers.add(Noting("b", calls, Phase.TRAIN))
    observers.step_begins("1", 1)
    assert calls == ["a begins", "b begins", "c begins"]


def test_steps_of_another_optimizer_are_not_shown() -> None:
    calls = list[str]()
    observers = Observers()
    observers.add(Noting("first", calls, optimizer="1"), Noting("second", calls, optimizer="2"), Noting("both", calls))
    observers.step_ended("2", 1)
    assert calls == ["second ended", "both ended"]


def test_an_observer_is_called_from_the_step_on_in_which_it_is_due() -> None:
    calls = list[str]()
    observers, observer = Observers(), Noting("x", calls)
    observers.add(observer)
    observer.due = 3
    for step in (1, 2, 3, 4):
        observers.step_ended("1", step)
    observer.due = NEVER
    observers.step_ended("1", 5)
    assert calls == ["x ended"] * 2


def test_who_was_removed_is_not_called() -> None:
    calls = list[str]()
    observers, observer = Observers(), Noting("x", calls)
    observers.add(observer)
    observers.step_begins("1", 1)
    observers.remove(observer)
    observers.step_begins("1", 2)
    assert calls == ["x begins"]


def test_only_methods_that_are_overridden_are_called() -> None:
    class Ends(StepObserver):
        def step_ended(self) -> None: ...

    observers = Observers()
    observers.add(Ends())
    assert observers._observers_of_steps("1")[0] == ()
    assert not any(observers.of_backward)


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority", "d-psgd", "local-sgd"])
def test_the_order_within_a_phase_has_no_meaning(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = trained(strategy)
    for seed in (1, 2):
        shuffled = random.Random(seed)

        def in_any_order(observers: Sequence[StepObserver], shuffled: random.Random = shuffled) -> list[StepObserver]:
            mixed = list(observers)
            shuffled.shuffle(mixed)
            return sorted(mixed, key=lambda observer: observer.phase)

        monkeypatch.setattr(step_observer, "in_order", in_any_order)
        assert trained(strategy) == usual


def trained(strategy: str) -> list[list[float]]:
    """Parameters, and the virtual time, of three workers that observe buffers, edits and losses, save and train."""

    def task(world: quorate.World) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        model.register_buffer("scale", torch.ones(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        distributed = quorate.distribute(optimizer, model, strategy, compare_every=4)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        for step in range(9):
            x = torch.full((2, 3), float(world.rank + step) / 4)
            distributed.zero_grad()
            model(x).square().mean().backward()
            distributed.step()
            schedule.step()
        distributed.finish()
        return [*nn.utils.parameters_to_vector(model.parameters()).tolist(), optimizer.param_groups[0]["lr"]]

    return VirtualWorld(3).run(joined(task))
