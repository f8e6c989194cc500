"""A training that late gradients make worse says so, in one sentence; one that they do not says nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import quorate
from quorate.core.records import Recorder, records_of
from quorate.observe import learning_watch
from quorate.observe.step_times import timing
from quorate.report.reading.run import read_run
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

STEPS = 128
RATE = 0.08
"""A rate that is stable as long as no gradient is late, or none of them goes into a momentum that all share."""


def train(
    size: int,
    strategy: str,
    *,
    rate: float = RATE,
    folder: Path | None = None,
    until: Sequence[str] = (),
    **settings: Any,
) -> float:
    """A regression among workers whose steps take between 5 and 35 ms, until somebody says something; its error."""

    @joined
    def live(world: quorate.World) -> float:
        recorder = None if folder is None else Recorder(records_of(folder, world.rank))
        timing(current.here()).recorder = recorder
        torch.manual_seed(0)
        model = nn.Linear(16, 1)
        plain = SGD(model.parameters(), lr=rate, momentum=0.9)
        optimizer = quorate.distribute(plain, model, strategy, compare_every=0, **settings)
        draw, pauses = torch.Generator().manual_seed(100 + world.rank), random.Random(7 + world.rank)
        for _ in range(STEPS):
            if until:
                break
            x = torch.randn(32, 16, generator=draw)
            y = x.sum(1, keepdim=True) + 0.1 * torch.randn(32, 1, generator=draw)
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            world.wire.clock.sleep(0.005 + 0.03 * pauses.random())
            optimizer.step()
        optimizer.finish()
        if recorder is not None:
            recorder.close()
        with torch.no_grad():
            return float((model.weight - 1).square().sum() + model.bias.square().sum())

    return VirtualWorld(size, timeout=600.0).run(live)[0]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(learning_watch, "tell", found.append)
    return found


def test_harm_is_told_once_with_what_to_do(said: list[str], tmp_path: Path) -> None:
    train(4, "eager-solo", folder=tmp_path, until=said, momentum="common")
    (sentence,) = said
    assert sentence.startswith("quorate: the training loss has ")
    assert "late in the mean; wait for more workers (wait_for=3), lower the learning rate" in sentence
    assert 'or let workers keep their momentum (momentum="worker")' in sentence
    cautions = [one.caution for rank in read_run(tmp_path).ranks for one in rank.rounds if one.caution]
    assert cautions == [sentence.removeprefix("quorate: ").rstrip("\n")]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        pytest.param("eager-solo", {}, id="momentum-of-workers"),
        pytest.param("quorum", {"momentum": "common", "wait_for": "all"}, id="all"),
    ],
)
def test_a_healthy_training_says_nothing(strategy: str, settings: dict[str, Any], said: list[str]) -> None:
    assert train(4, strategy, **settings) < 0.01
    assert said == []


def test_adaptive_waits_for_more_where_the_loss_swings() -> None:
    assert train(4, "adaptive", rate=0.06, momentum="common") < 0.1
