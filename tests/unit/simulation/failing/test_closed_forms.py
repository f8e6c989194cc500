"""Goodput held against what is known of it: availability, Young's checkpoints, stops that overlap."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quorate.inject.failures import Failures
from quorate.simulation.failing.playing import Goodput, play
from quorate.simulation.failing.recovery import Recovery

LONG = 60_000.0
"""Seconds; with a failure in some 20 s there are 3,000, and shares are right within two or three percent."""


def goodput_of(mtbf: float, workers: int, *, recovery: Recovery, learners: int = 1, **others: Any) -> Goodput:
    failures = Failures(mtbf=mtbf, repair=others.pop("repair", 0.0), restart=others.pop("restart", 0.0))
    usual = {"seconds": LONG, "step": 0.01, "seed": 1}
    return play(failures, workers, learners=learners, recovery=recovery, **{**usual, **others})


@pytest.mark.parametrize("down", [1.0, 20.0, 300.0])
def test_learners_of_one_worker_are_there_as_long_as_they_live(down: float) -> None:
    settings = {"sync_every": 1}  # nothing but a begun step is lost
    ways: dict[str, Any] = {"strategy": "decoupled-diloco", "settings": settings, "learners": 16}
    result = goodput_of(320.0, 16, recovery=Recovery(), repair=0.75 * down, restart=0.25 * down, **ways)
    assert result.goodput == pytest.approx(320 / (320 + down), rel=0.03)
    assert result.down == pytest.approx(down / (320 + down), rel=0.03)


@pytest.mark.parametrize(("period", "save"), [(5.0, 0.0), (5.0, 1.0), (20.0, 2.0)])
def test_a_restart_from_checkpoints_is_as_young_and_daly_have_it(period: float, save: float) -> None:
    recovery = Recovery(detect=2.0, spare=3.0, checkpoint=period, save=save)
    result = goodput_of(20 * 100.0, 100, recovery=recovery, restart=5.0)
    rate, stop = 1 / 20, 10.0
    working = 1 / (1 + rate * stop)
    assert result.uptime == pytest.approx(working, rel=0.02)
    assert result.goodput == pytest.approx(working * rate * period / math.expm1(rate * (period + save)), rel=0.03)


def test_the_period_chosen_is_about_the_best() -> None:
    def goodput(checkpoint: float | None) -> float:
        return goodput_of(
            2000.0, 100, recovery=Recovery(spare=0.0, checkpoint=checkpoint, save=0.5), restart=1.0
        ).goodput

    best = goodput_of(2000.0, 100, recovery=Recovery(spare=0.0, save=0.5), restart=1.0)
    assert best.checkpoint == pytest.approx(math.sqrt(2 * 0.5 * 20))
    assert best.goodput > max(goodput(best.checkpoint / 3), goodput(best.checkpoint * 3))


def test_deaths_in_a_stop_are_part_of_it_or_begin_it_again() -> None:
    elastic: dict[str, Any] = {"settings": {"on_death": "continue"}, "repair": 0.0}
    absorbed = goodput_of(2e5, 10_000, recovery=Recovery(detect=5.0, reshard=15.0, join=0.0), **elastic)
    again = goodput_of(2e5, 10_000, recovery=Recovery(detect=5.0, reshard=15.0, join=0.0, during="again"), **elastic)
    assert absorbed.uptime == pytest.approx(1 / (1 + 20 / 20), rel=0.03)
    assert again.uptime == pytest.approx(math.exp(-20 / 20), rel=0.04)


def test_those_who_come_back_stop_the_rest_as_well() -> None:
    recovery = Recovery(detect=2.0, reshard=3.0, join=5.0)
    result = goodput_of(2e6, 100_000, recovery=recovery, settings={"on_death": "continue"}, repair=1000.0)
    assert result.uptime == pytest.approx(1 / (1 + (5 + 5) / 20), rel=0.03)
    assert result.down == pytest.approx(1000 / 2e6, rel=0.05)


def test_a_slice_stands_idle_with_one_of_its_workers() -> None:
    recovery = Recovery(detect=0.0, reshard=0.0, slice=50)
    result = goodput_of(2e6, 100_000, recovery=recovery, settings={"on_death": "continue"}, repair=1000.0)
    assert result.down == pytest.approx(50 * 1000 / 2e6, rel=0.05)
