"""A tuning decides by paired intervals: a default that is the best stays, and what is clearly faster is taken."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from quorate.tuning.best_parts import LinkCosts
from quorate.tuning.choices import Choice, Profile
from quorate.tuning.decision import fastest, left_band, speed_up
from quorate.tuning.proposals import Grid, proposer_of
from quorate.tuning.tuner import FINALISTS, SCREENED, Outcome, Tuner

DEFAULT = Choice(part_bytes=8 << 20, first_part_bytes=1 << 20)
TENSORS = 160
BUDGET = 186


def profile(latency: float = 0.0005) -> Profile:
    ready = [0.1 * (TENSORS - index) / TENSORS for index in range(TENSORS)]
    return Profile(ready, [400_000] * TENSORS, LinkCosts(latency, 1e9), skew=0.0)


def tuned(factor: Callable[[Choice], float], *, seed: int = 0, latency: float = 0.0005) -> tuple[Outcome, Tuner, int]:
    """Tune with a noise of 7 %, where a step takes `factor` times as long as the default's."""
    noise, steps, of = random.Random(seed), 0, profile(latency)
    tuner = Tuner(DEFAULT, of, Grid(DEFAULT, of), BUDGET)
    while (trial := tuner.trial()) is not None:
        noisy = [(noise.lognormvariate(0, 0.07), noise.lognormvariate(0, 0.07)) for _ in range(trial.pairs)]
        tuner.measured(trial, [(default, own * factor(trial.choice)) for default, own in noisy])
        steps += 2 * trial.pairs
    return tuner.outcome(), tuner, steps


@pytest.mark.seeds(8, 40)
def test_the_default_stays_where_it_is_the_best(seed: int) -> None:
    outcome, tuner, steps = tuned(lambda choice: 1.02, seed=seed)
    assert outcome.choice == DEFAULT and outcome.number is None and outcome.interval is None
    assert steps <= BUDGET and len(tuner.finalists or ()) <= FINALISTS


@pytest.mark.seeds(4, 40)
def test_a_choice_that_is_clearly_faster_is_taken(seed: int) -> None:
    outcome, tuner, _ = tuned(lambda choice: 0.85 if choice.part_layout == "measured" else 1.0, seed=seed)
    assert outcome.choice.part_layout == "measured" and outcome.number is not None
    assert outcome.interval is not None and (outcome.interval.low or 0) > 1
    assert tuner.tried[outcome.number].choice == outcome.choice


def test_what_the_model_refuses_is_not_tried_and_nothing_is_tried_twice() -> None:
    _, tuner, _ = tuned(lambda choice: 1.0, latency=0.005)
    assert tuner.refused > 0
    assert all(tried.predicted <= 1.02 * tuner.predicted for tried in tuner.tried)
    choices = [tuner.default, *(tried.choice for tried in tuner.tried)]
    of = profile(0.005)
    assert not any(of.is_alike(a, b) for i, a in enumerate(choices) for b in choices[:i])


def test_optuna_proposes_and_our_rule_decides() -> None:
    pytest.importorskip("optuna", reason="the extra `tune`")
    of = profile()
    proposer = proposer_of(DEFAULT, of)
    assert proposer.name == "optuna"
    tuner = Tuner(DEFAULT, of, proposer, BUDGET)
    while (trial := tuner.trial()) is not None:
        tuner.measured(trial, [(1.0, 1.05)] * trial.pairs)
    assert tuner.outcome().choice == DEFAULT and len(tuner.tried) == SCREENED
    assert any(tried.choice.part_bytes & (tried.choice.part_bytes - 1) for tried in tuner.tried)


def test_steps_that_were_none_like_others_do_not_count() -> None:
    of = profile()
    tuner = Tuner(DEFAULT, of, Grid(DEFAULT, of), BUDGET)
    while (trial := tuner.trial()) is not None:
        tuner.measured(trial, [None] * trial.pairs)
    assert tuner.outcome().choice == DEFAULT and tuner.finalists == []


def test_the_lower_end_decides_and_more_candidates_need_more() -> None:
    steady, wild = [(1.0, 0.95), (1.0, 0.94), (1.0, 0.96)] * 4, [(1.0, 0.5), (1.0, 1.5), (1.0, 0.6)] * 4
    assert fastest({0: wild, 1: steady}) == 1
    assert fastest({0: wild}) is None and fastest({}) is None and fastest({0: [(1.0, 0.5)]}) is None
    assert (speed_up(steady, 3).low or 0) < (speed_up(steady).low or 0)


def test_a_band_is_left_on_both_sides() -> None:
    assert left_band(1.0, 2.1, 2.0) and left_band(1.0, 0.4, 2.0)
    assert not left_band(1.0, 1.9, 2.0) and not left_band(1.0, 0.6, 2.0)
