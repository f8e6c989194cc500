"""A training that late gradients make worse says so, in one sentence; one that they do not says nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import quorate
from quorate.core.contracts import Wire
from quorate.core.records import Recorder, records_of
from quorate.observe import learning_watch
from quorate.observe.step_times import timing
from quorate.report.reading.run import read_run
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld

STEPS = 228
Make = Callable[[Any], Optimizer]


def momentum(rate: float) -> Make:
    return lambda parameters: SGD(parameters, lr=rate, momentum=0.9)


def adam(rate: float) -> Make:
    return lambda parameters: AdamW(parameters, lr=rate)


def train(
    size: int,
    strategy: str,
    make: Make,
    *,
    steps: int = STEPS,
    noise: float = 0.0,
    folder: Path | None = None,
    until: Sequence[str] = (),
    **settings: Any,
) -> float:
    """A regression among workers whose steps take between 5 and 35 ms, until somebody says something; its error."""

    def live(wire: Wire) -> float:
        place = current.enter(wire, thread_only=True)
        world = quorate.join()
        recorder = None if folder is None else Recorder(records_of(folder, world.rank))
        timing(place).recorder = recorder
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        plain = make(model.parameters())
        optimizer = quorate.distribute(plain, model, strategy, compare_every=0, **settings)
        draw, pauses = torch.Generator().manual_seed(100 + world.rank), random.Random(7 + world.rank)
        for _ in range(steps):
            if until:
                break
            x = torch.randn(32, 64, generator=draw)
            y = x.sum(1, keepdim=True) + noise * torch.randn(32, 1, generator=draw)
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            wire.clock.sleep(0.005 + 0.03 * pauses.random())
            optimizer.step()
        optimizer.finish()
        if recorder is not None:
            recorder.close()
        place.leave()
        current.forget(thread_only=True)
        x = torch.randn(2000, 64, generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            return float((model(x) - x.sum(1, keepdim=True)).square().mean())

    return VirtualWorld(size, timeout=600.0).run(live)[0]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(learning_watch, "tell", found.append)
    return found


@pytest.mark.parametrize(
    ("size", "make", "settings"),
    [
        pytest.param(4, momentum(0.01), {"momentum": "common"}, id="4-momentum"),
        pytest.param(8, momentum(0.01), {"momentum": "common"}, id="8-momentum"),
        pytest.param(4, adam(0.02), {}, id="4-adam-0.02"),
        pytest.param(8, adam(0.02), {}, id="8-adam-0.02"),
        pytest.param(4, adam(0.03), {}, id="4-adam-0.03"),
    ],
)
def test_harm_is_told_once_with_what_to_do(
    size: int, make: Make, settings: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    train(size, "eager-solo", make, folder=tmp_path, until=said, **settings)
    (sentence,) = said
    assert sentence.startswith("quorate: the training loss has ")
    assert f"late in the mean; wait for more workers (wait_for={size // 2 + 1})" in sentence
    assert "lower the learning rate" in sentence
    assert ('(momentum="worker")' in sentence) == bool(settings)
    cautions = [one.caution for rank in read_run(tmp_path).ranks for one in rank.rounds if one.caution]
    assert cautions == [sentence.removeprefix("quorate: ").rstrip("\n")]


@pytest.mark.parametrize(
    ("strategy", "make", "settings"),
    [
        pytest.param("eager-solo", momentum(0.01), {}, id="momentum-of-workers"),
        pytest.param("eager-solo", momentum(0.001), {"momentum": "common"}, id="momentum-at-a-low-rate"),
        pytest.param("eager-solo", adam(0.003), {}, id="adam-at-a-low-rate"),
        pytest.param("eager-solo", momentum(0.01), {"noise": 4.0}, id="noise-in-labels"),
        pytest.param("quorum", momentum(0.01), {"momentum": "common", "wait_for": "all"}, id="all"),
    ],
)
def test_a_healthy_training_says_nothing(strategy: str, make: Make, settings: dict[str, Any], said: list[str]) -> None:
    train(4, strategy, make, **settings)
    assert said == []


def test_adaptive_waits_for_more_where_the_loss_swings() -> None:
    assert train(4, "adaptive", adam(0.02), steps=240, momentum="common") < 0.1
