"""What is taken for harm by late gradients, and what is not, in losses drawn at random."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from quorate.rounds.choosing import Level, swings
from quorate.rounds.learning import Harm, Learning, Swing

STEPS = 1500
RECORDED: dict[str, list[float]] = json.loads((Path(__file__).parent / "losses.json").read_text())
"""Losses of one of the workers of a regression (64 inputs, 256 hidden units) under `eager-solo`."""
Draw = Callable[[], float]


def seen(losses: Iterable[float | tuple[float, float]], *, late: float = 1.0, swings: bool = False) -> Harm | None:
    """The first that is seen in losses, or in pairs of a loss and a learning rate."""
    learning = Learning(looks_for_swings=swings)
    for one in losses:
        learning.round(4 * late, 4)
        harm = learning.step(*(one if isinstance(one, tuple) else (one, 1.0)))
        if harm is not None:
            return harm
    return None


def batches(seed: int, width: float = 0.3) -> Draw:
    """What a batch drawn by chance makes of a loss."""
    draw = random.Random(seed)
    return lambda: math.exp(draw.gauss(0, width))


def fallen(step: int) -> float:
    return 60 * math.exp(-step / 20) + 0.05


def cycles(seed: int, period: int) -> list[tuple[float, float]]:
    """The rate falls, and starts again; the loss follows it."""
    level, found, batch = 10.0, [], batches(seed)
    for step in range(STEPS):
        rate = 0.51 + 0.5 * math.cos(math.pi * (step % period) / period)
        level += (0.15 if level < rate / 2 else 0.05) * (rate / 2 - level)
        found.append((level * batch(), rate))
    return found


@pytest.mark.parametrize("swings", [False, True])
@pytest.mark.parametrize("seed", range(3))
class TestSilence:
    def test_where_the_loss_falls(self, seed: int, swings: bool) -> None:
        batch = batches(seed)
        assert seen([fallen(step) * batch() for step in range(STEPS)], swings=swings) is None

    def test_where_labels_are_noise(self, seed: int, swings: bool) -> None:
        batch = batches(seed)
        assert seen([(fallen(step) + 16) * batch() for step in range(STEPS)], swings=swings) is None

    def test_where_single_losses_are_enormous(self, seed: int, swings: bool) -> None:
        batch = batches(seed, 1.5)
        assert seen([(fallen(step) + 0.3) * batch() for step in range(STEPS)], swings=swings) is None

    def test_where_losses_are_of_both_signs(self, seed: int, swings: bool) -> None:
        draw = random.Random(seed)
        assert seen([draw.gauss(step / 100, 1) for step in range(STEPS)], swings=swings) is None

    @pytest.mark.parametrize("period", [20, 100, 300])
    def test_where_the_learning_rate_goes_up_again(self, seed: int, swings: bool, period: int) -> None:
        assert seen(cycles(seed, period), swings=swings) is None

    def test_where_the_loss_falls_to_nothing(self, seed: int, swings: bool) -> None:
        batch = batches(seed, 1.0)
        losses = [0.0 if step % 7 == 0 else math.exp(-step / 20) * batch() for step in range(STEPS)]
        assert seen(losses, swings=swings) is None


def wandering(seed: int, stays: float, width: float) -> list[float]:
    """A loss that goes up and down by itself: of its logarithm, so much stays from step to step; `width` is its own."""
    draw, level, found = random.Random(seed), 0.0, []
    for _ in range(STEPS):
        level = stays * level + math.sqrt(1 - stays * stays) * draw.gauss(0, width)
        found.append(math.exp(level + draw.gauss(0, 0.35)))
    return found


@pytest.mark.parametrize("width", [0.3, 0.6])
@pytest.mark.parametrize("stays", [0.5, 0.9, 0.98])
def test_a_loss_that_wanders_by_itself_is_no_harm(stays: float, width: float) -> None:
    found = [seen(wandering(seed, stays, width), swings=True) for seed in range(12)]
    assert sum(harm is not None for harm in found) <= 1


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_trainings(name: str) -> None:
    kind = name.split(":")[0]
    harm = seen(RECORDED[name], swings=kind != "harm")
    expected = {"healthy": None, "harm": "the training loss has risen", "swings": "the training loss has gone up and"}
    assert (harm and harm.what[: len(expected[kind] or "")]) == expected[kind]
    assert seen(RECORDED[name], late=0.0, swings=True) is None


def test_a_loss_that_rises_from_the_start() -> None:
    batch = batches(0)
    assert seen([math.exp(step / 60) * batch() for step in range(400)]) is not None
    assert seen([math.exp(step / 600) * batch() for step in range(400)]) is None


def risen(seed: int = 0) -> list[float]:
    """It grows twofold every 20 steps from step 200 on."""
    batch = batches(seed)
    return [(fallen(step) + 0.05 * 2 ** max(0.0, (step - 200) / 20)) * batch() for step in range(400)]


def test_a_rise_is_told_with_both_losses() -> None:
    harm = seen(risen())
    assert harm is not None
    assert harm.what.startswith("the training loss has risen from 0.1")
    assert harm.late == 1.0


def test_what_was_ever_below_zero_has_no_factor() -> None:
    assert seen([-1.0, *risen()], swings=True) is None


def test_where_nobody_is_late_a_rise_is_no_harm_of_lateness() -> None:
    assert seen(risen(), late=0.0) is None


def test_one_bad_window_is_none() -> None:
    batch = batches(0)
    assert seen([(50.0 if 320 <= step < 352 else fallen(step)) * batch() for step in range(1000)]) is None


def test_one_that_is_a_little_worse_and_one_bad_window_are_none() -> None:
    batch = batches(0)
    levels = [1.0] * 320 + [1.3] * 32 + [50.0] * 32 + [1.0] * 320
    assert seen([level * batch() for level in levels]) is None


def test_a_rise_within_chance_is_none() -> None:
    for seed in range(40):
        batch = batches(seed, 3.0)
        assert seen([batch() for _ in range(160)]) is None


def test_what_a_loss_has_come_back_from_it_may_go_up_by_again() -> None:
    batch = batches(0)

    def wave(step: int) -> float:
        return math.exp(0.34 * math.cos(2 * math.pi * step / 256))

    losses = [wave(step) * batch() for step in range(1000)]
    assert seen(losses) is None
    assert seen([20 * x if step >= 800 else x for step, x in enumerate(losses)]) is not None


@pytest.mark.parametrize("end", [math.inf, math.nan])
def test_a_loss_that_is_finite_no_more(end: float) -> None:
    losses = [1.0] * 20 + [end] * 8
    harm = seen(losses)
    assert harm is not None
    assert "has not been finite for 8 steps" in harm.what
    assert seen([end] * 1000) is None or seen([end] * 8) is None
    assert seen(losses[:-1]) is None
    assert seen(losses, late=0.0) is None


def swinging(step: int, batch: Draw, level: float = 10.0) -> float:
    return level * math.exp(0.7 * math.sin(2 * math.pi * step / 11)) * batch()


def test_swings_are_told_where_they_are_looked_for() -> None:
    batch = batches(0)
    losses = [swinging(step, batch) for step in range(200)]
    harm = seen(losses, swings=True)
    assert harm is not None
    assert "has gone up and down by a factor of 2" in harm.what
    assert seen(losses) is None
    assert seen(losses, late=0.0, swings=True) is None


def test_what_a_training_leaves_behind_is_no_swing() -> None:
    batch = batches(0)
    losses = [swinging(step, batch, 10 * math.exp(-step / 40)) for step in range(400)]
    assert seen(losses, swings=True) is None


def test_a_quorum_that_swings_is_too_small() -> None:
    batch = batches(0)
    some = [Swing.of([swinging(step, batch) for step in range(16)]) for _ in range(3)]
    level, fast = Level(1.0, 0.1), Level(0.3, 0.1)
    assert swings(some, [level, level, level])
    assert not swings(some[:2], [level, level])
    assert not swings(some, [level, level, fast])
    assert not swings([Swing.of([batch() for _ in range(16)]) for _ in range(3)], [level] * 3)
    assert not swings([*some[:2], Swing.of([])], [level] * 3)
