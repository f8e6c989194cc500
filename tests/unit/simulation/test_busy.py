"""How long simulated workers are at work: as training spends pace and imbalance, and as a run has recorded it."""

from __future__ import annotations

import pytest

from quorate.core.durations import FORWARD_SHARE, Constant
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import parse_pace
from quorate.simulation.busy import Modelled, Recorded


def test_without_anything_it_is_the_compute_time() -> None:
    busy = Modelled(compute=Constant(0.03), update=Constant(0.002))
    assert (busy.before(3, 7), busy.after(3, 7)) == (0.03, 0.002)
    assert busy.backward(3, 7) == pytest.approx(0.03 * (1 - FORWARD_SHARE))


@pytest.mark.parametrize(
    ("compute", "pace", "late", "seconds"),
    [
        (0.03, "100ms", None, 0.100 + 0.020),  # the pace ends with the forward pass
        (0.60, "100ms", None, 0.60),
        (0.03, None, "rank:0:50ms", 0.08),
        (0.03, None, "rank:0:x3", 0.09),
        (0.03, "100ms", "rank:0:x3", 0.300 + 0.020),
        (0.60, "100ms", "rank:0:x2", 0.60 + 0.20),
        (0.03, "100ms", "rank:1:x3", 0.12),
    ],
)
def test_pace_and_imbalance_are_spent_before_the_backward_pass(
    compute: float, pace: str | None, late: str | None, seconds: float
) -> None:
    busy = Modelled(
        compute=Constant(compute),
        pace=None if pace is None else parse_pace(pace, seed=0, size=2),
        imbalance=None if late is None else parse_imbalance(late, seed=0, size=2),
    )
    assert busy.before(0, 0) == pytest.approx(seconds)


RECORDED = Recorded(
    first=[[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0]], last=[[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7]], drawn=[1, 2]
)


def test_the_first_workers_take_what_was_recorded_in_order() -> None:
    assert [RECORDED.before(0, step) for step in range(6)] == [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]
    assert [RECORDED.after(1, step) for step in range(4)] == [0.5, 0.6, 0.7, 0.5]
    assert RECORDED.backward(0, 0) == 0.0


def test_further_blocks_take_whole_steps_that_are_drawn() -> None:
    drawn = {(RECORDED.before(2, step), RECORDED.before(3, step)) for step in range(40)}
    assert drawn == {(2.0, 20.0), (3.0, 30.0)}  # together, as they were, and only those that measure
    other = [RECORDED.before(4, step) for step in range(40)]
    assert other != [RECORDED.before(2, step) for step in range(40)]  # each block for itself
    assert other == [RECORDED.before(4, step) for step in range(40)]
