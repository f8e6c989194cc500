"""How long simulated workers are at work: as training spends pace and imbalance, and as a run has recorded it."""

from __future__ import annotations

import pytest

from quorate.core.durations import FORWARD_SHARE, Constant, Sampled
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import parse_pace
from quorate.simulation.busy import Drawn, Modelled, Recorded


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


def test_seconds_that_are_drawn_once_are_the_same() -> None:
    """Also of steps that are not kept any more, and of all workers at a time."""
    calls = []

    class Counted(Modelled):
        def before(self, rank: int, step: int) -> float:
            calls.append((rank, step))
            return super().before(rank, step)

    busy = Counted(compute=Sampled("lognormal", 0.1, 0.5, 3), update=Constant(0.01))
    drawn = Drawn(busy, 3)
    for _ in range(2):
        assert [drawn.before(rank, step) for step in range(4) for rank in range(3)] == [
            Modelled.before(busy, rank, step) for step in range(4) for rank in range(3)
        ]
    assert len(calls) == 12
    before, backward, after = drawn.of_all(2)
    assert before.tolist() == [Modelled.before(busy, rank, 2) for rank in range(3)]
    assert backward.tolist() == [busy.backward(rank, 2) for rank in range(3)] and after.tolist() == [0.01] * 3
    drawn._most = 2
    assert drawn.before(1, 9) == Modelled.before(busy, 1, 9)
    drawn.before(0, 10), drawn.before(0, 11), drawn.before(0, 12)
    assert drawn.after(2, 0) == 0.01 and drawn.of_all(1)[0].tolist()[1] == Modelled.before(busy, 1, 1)
