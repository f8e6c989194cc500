"""Asynchronous local SGD: delayed Nesterov momentum as published, whoever comes when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.terms import Agreed
from quorate.strategies.parts.learners import AsyncLearner, learner_of
from quorate.strategies.parts.outer_steps import OuterOptimizer
from tests.support.local_trainings import loss, net
from tests.support.scene import Scene, Trainer, flat, zeros
from tests.unit.strategies.test_decoupled_diloco import are_equal, common, ledger, paces, scene, trained, uneven

STEPS, H = 24, 4


def alone(every: int, rate: float = 0.7, beta: float = 0.9) -> Tensor:
    """One learner, by the equations."""
    model = net()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, m, s, count = flat(model), torch.zeros_like(flat(model)), torch.zeros_like(flat(model)), 0
    for step in range(STEPS):
        inner.zero_grad()
        loss(model, 0, step).backward()
        inner.step()
        if (step + 1) % H == 0:
            g, count = x - flat(model), count + 1
            x, s = x - rate * g / every, s + g
            if count == every:
                m = beta * m + s / every
                x, s, count = x - rate * beta * m, torch.zeros_like(s), 0
            torch.nn.utils.vector_to_parameters(x.clone(), model.parameters())
    return x


PUBLISHED: dict[str, Any] = {"outer_rate": 0.7, "outer_momentum": 0.9}


@pytest.mark.parametrize("every", [1, 2, 3])
def test_one_learner_goes_by_the_equations(every: int) -> None:
    found = trained(1, "async-local-sgd", steps=STEPS, sync_every=H, momentum_every=every, **PUBLISHED)[0][0]
    assert torch.allclose(found, alone(every), rtol=0, atol=2e-6)


def test_with_cycles_of_one_it_is_plain_nesterov() -> None:
    found = trained(1, "async-local-sgd", steps=STEPS, sync_every=H, momentum_every=1)[0][0]
    assert torch.allclose(found, trained(1, "diloco", steps=STEPS, sync_every=H)[0][0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [{}, {"dynamic": False}, {"late": "decay", "momentum_every": 2}], ids=str)
def test_every_step_of_every_learner_counts_once(settings: dict[str, Any], seed: int) -> None:
    size = 3 + seed % 2
    run: dict[str, Any] = {"pause": uneven, "rests": (11,), "seed": seed, "sync_every": H, **settings}
    kept = [one for _, one in trained(size, "async-local-sgd", look=ledger, **run)]
    assert all((one.produced, one.taken, one.lost) == (STEPS, STEPS, 0.0) for one in kept)
    assert are_equal(trained(size, "async-local-sgd", look=common, **run))


@pytest.mark.parametrize("seed", range(4))
def test_all_ways_together_are_what_the_point_went(seed: int) -> None:
    """Every step goes 1 down; with an outer rate of 1 and no momentum the point goes as far as all steps together."""
    size = 3 + seed % 2

    settings: dict[str, Any] = {"outer_rate": 1.0, "outer_momentum": 0.0, "momentum_every": 2, "sync_every": H}
    chosen = {"rate": 1.0, "steps": STEPS, "pause": paces(uneven, seed), "world": {"seed": seed}, **settings}
    alike = Scene(
        "async-local-sgd", size, model=lambda: zeros(1, 2)().double(), loss=lambda t: t.model.weight.sum(), **chosen
    )
    ends = alike.run(lambda trainer: common(trainer.optimizer)[0].reshape(-1).tolist())
    assert ends == [pytest.approx([-STEPS * size / 2] * 2, abs=1e-9)] * size


@pytest.mark.parametrize("slowness", [1.0, 1.7, 2.3, 5.0])
@pytest.mark.parametrize(("size", "settings"), [(2, {}), (2, {"dynamic": False}), (3, {"late": "decay"})], ids=str)
def test_each_outer_gradient_counts_when_it_is_handed_in(size: int, settings: dict[str, Any], slowness: float) -> None:
    """No learner makes a step while an outer gradient of its own is not in the common point, however slow it is."""

    def after(trainer: Trainer) -> None:
        learner: AsyncLearner = trainer.worker.state
        if learner.times > times.get(trainer.rank, 0):
            trainer.seen.append(learner.since[0][0])
        times[trainer.rank] = learner.times

    times = dict[int, int]()

    pause = lambda _, rank: 0.01 * slowness**rank  # noqa: E731
    for trainer in scene(size, "async-local-sgd", pause=pause, after=after, sync_every=H, **settings).run():
        assert len(trainer.seen) >= STEPS // H and not any(trainer.seen), trainer.seen


def test_an_outer_gradient_is_as_old_as_the_steps_in_it() -> None:
    layout = layout_of([("x", torch.zeros(3))], header=1)
    pending = PendingFragments(Agreed(size=2, max_staleness=16), Fragments((layout,)))
    pending.hand_in([Flat.zeros(layout)], 4.0, 5, 4.0, None, began=2)
    assert pending.take(6).stalenesses == [(3, 1)]
    pending.hand_in([Flat.zeros(layout)], 4.0, 5, 8.0, None)
    assert not pending.take(7).entries, "round 6 is not in these vectors"
    pending.hand_in([Flat.zeros(layout)], 4.0, 7, 8.0, None, began=5)
    assert pending.take(8).stalenesses == [(2, 1)]


def test_a_slow_learner_makes_fewer_steps() -> None:
    """Rank 1 is four times slower: of 16 steps of the fastest it makes 4 in about the same time."""
    outer = OuterOptimizer("sgd", 0.7, 0.9, True, "own")
    one = learner_of(Flat.zeros(layout_of([("x", torch.zeros(3))], header=1)), 1, outer, AsyncLearner, every=2)
    assert one.period_of(1, 16.0) == 16.0
    told = {"weights": [1.0]}
    one.arrived({0: [{"speed": 40.0, **told}], 1: [{"speed": 10.0, **told}], 2: [{"speed": None, **told}]})
    assert (one.period_of(0, 16.0), one.period_of(1, 16.0), one.period_of(2, 16.0)) == (16.0, 4.0, 16.0)
    assert one.arrivals == 3 and one.period_of(1, 3.0) == 1.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sync_every": 0}, "sync_every is 0; it must be a number of steps"),
        ({"sync_every": "30s"}, "it should be a whole number"),
        ({"momentum_every": -1}, "momentum_every is -1; it must be a number of arrivals, or 0"),
        ({"outer_rate": 0.0}, "the rate must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        trained(1, "async-local-sgd", steps=1, **settings)
