"""The rule by which `adaptive` chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from quorate.core.means import Measured, WorkerMeasures
from quorate.rounds.choice.choosing import Forecast, Level, Trust, Window, choose, cost, is_worse, level

SIZE = 8
RULE = {"least": 1, "lateness": 0.1, "margin": 0.02}


def window(work: Sequence[Sequence[float]], *, square: float = 4.0, of_sum: float = 100.0, **more: float) -> Window:
    """Rounds of all workers, as if all had been waited for; worker by worker what its steps took."""
    rounds = [
        Measured(
            number,
            len(work),
            len(work),
            [
                (rank, WorkerMeasures(own, more.get("waited"), more.get("loss"), square))
                for rank, own in enumerate(step)
            ],
            of_sum,
        )
        for number, step in enumerate(zip(*work, strict=True), 2)
    ]
    return Window(rounds)


def drawn(low: float, high: float, steps: int = 40) -> list[list[float]]:
    draw = random.Random(1)
    return [[draw.uniform(low, high) for _ in range(steps)] for _ in range(SIZE)]


class TestChoice:
    def test_equally_fast_workers_are_all_waited_for(self) -> None:
        assert choose(window([[0.1] * 20] * SIZE), 3, **RULE).wait_for == SIZE
        assert choose(window(drawn(0.1, 0.101)), 3, **RULE).wait_for == SIZE

    def test_one_that_is_always_slow_is_not(self) -> None:
        work = [[0.1] * 20 for _ in range(SIZE)]
        work[3] = [0.3] * 20
        assert choose(window(work), SIZE, **RULE).wait_for == SIZE - 1

    def test_where_all_vary_much_few_are(self) -> None:
        chosen = choose(window(drawn(0.01, 0.3)), SIZE, **RULE)
        assert chosen.wait_for <= 3
        assert "gradients a second" in chosen.why

    def test_the_costlier_lateness_is_the_more_are(self) -> None:
        late = [choose(window(drawn(0.05, 0.3)), SIZE, least=1, lateness=a, margin=0.02) for a in (0.0, 0.3, 10.0)]
        assert [one.wait_for for one in late] == [1, 1, SIZE]

    def test_what_is_noise_may_be_late(self) -> None:
        noisy, clear = (
            choose(window(drawn(0.05, 0.3), of_sum=found), SIZE, least=1, lateness=3.0, margin=0.02).wait_for
            for found in (8 * 4.0 * 1.01, 64 * 4.0)
        )
        assert noisy < clear

    def test_no_fewer_than_is_allowed(self) -> None:
        assert choose(window(drawn(0.01, 0.3)), SIZE, least=5, lateness=0.1, margin=0.02).wait_for >= 5

    def test_to_go_up_it_takes_more_than_to_go_down(self) -> None:
        work = window(drawn(0.09, 0.11))
        at = {now: choose(work, now, least=1, lateness=0.0, margin=0.06).wait_for for now in (1, SIZE)}
        assert at[1] < at[SIZE]

    def test_where_nothing_was_told_all_stays(self) -> None:
        assert choose(Window(), 3, **RULE).wait_for == 3
        assert (
            choose(Window([Measured(1, 3, 2, [(0, WorkerMeasures(1.0, None, None, 1.0))], 1.0)]), 3, **RULE).wait_for
            == 3
        )


def test_cost_is_the_formula() -> None:
    one = Forecast(seconds=0.2, gradients=4.0, staleness=1.0)
    assert cost(one, 8, 0.0, 2.0) == pytest.approx(0.05 * (1 + 2.0 * 0.5))
    assert cost(one, 8, 8.0, 2.0) == pytest.approx(0.05 * (1 + 2.0 * 0.5 * 0.5))
    assert cost(one, 8, math.inf, 2.0) == pytest.approx(0.05)


def test_the_exchange_is_what_the_last_caller_waits() -> None:
    waits = [0.3, 0.2, 0.1, 0.004] * 4
    rounds = [Measured(n, 4, 1, [(0, WorkerMeasures(0.1, wait, None, 1.0))], 1.0) for n, wait in enumerate(waits, 2)]
    assert Window(rounds).exchange(4) == 0.004
    assert Window().exchange(4) == 0.0


@pytest.mark.parametrize("noise", [0.5, 5.0, 50.0])
def test_noise_is_told_from_squares(noise: float) -> None:
    """Gradients with one part signal, of length 1, and `noise` parts noise in expectation, over 50 dimensions."""
    draw, dim, rounds = random.Random(2), 50, []
    for number in range(2, 202):
        own = [
            [(1.0 / math.sqrt(dim)) + draw.gauss(0.0, math.sqrt(noise / dim)) for _ in range(dim)] for _ in range(SIZE)
        ]
        measures = [(rank, WorkerMeasures(0.1, None, None, sum(x * x for x in one))) for rank, one in enumerate(own)]
        rounds.append(
            Measured(number, SIZE, SIZE, measures, sum(sum(column) ** 2 for column in zip(*own, strict=True)))
        )
    assert Window(rounds).noise == pytest.approx(noise, rel=0.15)


def test_noise_is_not_known_from_single_gradients() -> None:
    assert Window([Measured(2, 1, 1, [(0, WorkerMeasures(0.1, None, None, 1.0))], 1.0)]).noise == 0.0
    assert window([[0.1] * 9] * 4, square=1.0, of_sum=3.0).noise == math.inf  # sums are shorter than chance


class TestWorse:
    def test_beyond_chance(self) -> None:
        assert not is_worse([Level(1.0, 0.1)])
        assert not is_worse([Level(1.0, 0.1), Level(1.3, 0.1)])
        assert is_worse([Level(1.0, 0.1), Level(2.0, 0.1)])
        assert is_worse([Level(1.0, 0.1), Level(1.5, 0.1), Level(1.6, 0.1), Level(1.9, 0.1)])
        assert is_worse([Level(1.0, 0.1), Level(math.inf, 0.0)])

    def test_losses_say_it_and_else_the_gradients(self) -> None:
        found = level(window([[0.1] * 9] * 4, loss=2.5))
        assert found == Level(2.5, 0.0)
        unknown = level(window([[0.1] * 9] * 4, square=math.e**4))
        assert unknown is not None and unknown.mean == pytest.approx(2.0)
        assert level(window([[0.1] * 9] * 4, loss=math.nan)) == Level(math.inf, 0.0)
        assert level(Window()) is None

    def test_trust_is_lost_at_once_and_comes_back_slowly(self) -> None:
        trust = Trust().after(2, SIZE, is_worse=True)
        assert trust == Trust(least=4, windows=4, patience=8)
        seen = []
        for _ in range(14):
            trust = trust.after(4, SIZE, is_worse=False)
            seen.append(trust.least)
        assert seen == [4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]
        assert Trust(4, 1, 8).after(4, SIZE, is_worse=True) == Trust(8, 8, 16)
        assert Trust().after(SIZE, SIZE, is_worse=True) == Trust()
