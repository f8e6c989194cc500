"""Which worker says that late gradients do harm, to whom it says nothing, and what it advises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorate.observe import learning_watch
from quorate.observe.learning_watch import LearningWatch, Remedies

ENDLESS = [1.0] * 10 + [float("inf")] * 8


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(learning_watch, "tell", found.append)
    return found


def watch(*, is_first: bool = True, is_alone: bool = True, is_scaled: bool = False) -> LearningWatch:
    """After a loss that has become infinite, twice, under rounds with late gradients."""
    timer: Any = SimpleNamespace(loss=None, is_alone=is_alone)
    losses: Any = SimpleNamespace(is_first=is_first)
    one: Any = SimpleNamespace(quorum=1, live=4, contributors={0: [(0, 1)], 1: [(2, 1)]})
    found = LearningWatch(timer, losses, Remedies(can_wait=True))
    for loss in [*ENDLESS, None, *ENDLESS]:
        found.comes(one)
        timer.loss = loss
        found.gives([{"lr": 0.1}, {}], is_scaled=is_scaled)
    return found


def test_it_is_said_once(said: list[str]) -> None:
    found = watch()
    (sentence,) = said
    assert sentence == (
        "quorate: the training loss has not been finite for 8 steps while gradients were 1.0 rounds late in the mean; "
        "wait for more workers (wait_for=3) or lower the learning rate\n"
    )
    assert f"quorate: {found.take()}\n" == sentence
    assert found.take() is None


@pytest.mark.parametrize("where", [{"is_first": False}, {"is_alone": False}, {"is_scaled": True}])
def test_others_say_nothing(where: dict[str, bool], said: list[str]) -> None:
    assert watch(**where).take() is None
    assert said == []


def test_remedies_are_those_that_there_are() -> None:
    assert Remedies().in_words(1, 4) == "lower the learning rate"
    assert Remedies(can_wait=True).in_words(4, 4) == "lower the learning rate"
    assert Remedies(can_wait=True).in_words(5, 8) == "wait for more workers (wait_for=6) or lower the learning rate"
    assert Remedies(is_common=True).in_words(1, 4) == "lower the learning rate"
    assert Remedies(is_common=True, can_move=True, can_wait=True).in_words(1, 8) == (
        "wait for more workers (wait_for=5), lower the learning rate, "
        'or let workers keep their momentum (momentum="worker")'
    )
