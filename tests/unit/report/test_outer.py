"""Outer steps in figures and on the page."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quorate.records.rows import Outer
from quorate.report.topics.outer import SHOWN, outer_points, outer_summary


def made(step: int, rho: float | None, gain: float | None = 1.5, transverse: float | None = 0.5) -> Outer:
    return Outer(
        step=step, time=100.0 + step, optimizer="1", fragment=0, norm=1.0, momentum=0.9, rho=rho, gain=gain,
        transverse=transverse,
    )  # fmt: skip


def test_steps_that_say_less_are_left_out() -> None:
    points = outer_points([made(1, None), made(2, 0.5), made(3, 0.1, None), made(4, 0.3)], lambda time: time - 100.0)
    assert [(point.seconds, point.rho) for point in points] == [(2.0, 0.5), (4.0, 0.3)]
    summary = outer_summary([points, points[:1]])
    assert summary is not None
    assert (summary.count, summary.rho, summary.gain, summary.transverse) == (3, 0.5, 1.5, 0.5)
    assert [point.seconds for point in summary.shown] == [2.0, 4.0]
    assert outer_summary([(), ()]) is None


@pytest.mark.parametrize("count", [SHOWN, SHOWN + 1, 10 * SHOWN])
def test_many_steps_are_drawn_evenly(count: int) -> None:
    points = outer_points([made(step, 0.5) for step in range(count)], float)
    summary = outer_summary([points])
    assert summary is not None and summary.count == count
    seconds = [point.seconds for point in summary.shown]
    assert SHOWN / 2 <= len(seconds) <= SHOWN
    assert len({later - now for now, later in pairwise(seconds)}) == 1
