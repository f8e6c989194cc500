"""The rule of when rounds start, by itself: a pure function of what workers have said."""

from __future__ import annotations

import random

import pytest

from quorate.rounds.calls import Calls
from quorate.rounds.terms import Agreed


def calls(size: int, **settings: object) -> Calls:
    return Calls(Agreed(size=size, **settings))  # type: ignore[arg-type]


def started(one: Calls) -> int | None:
    return one.begin() if one.may_start() else None


@pytest.mark.parametrize(
    ("wait_for", "size", "count"),
    [
        (1, 5, 1),
        (3, 5, 3),
        ("all", 5, 5),
        ("majority", 5, 3),
        ("majority", 4, 3),
        (0.5, 5, 3),
        (0.9, 10, 9),
        (0.1, 4, 1),
    ],
)
def test_how_many_have_to_call(wait_for: object, size: int, count: int) -> None:
    one = calls(size, wait_for=wait_for)
    for rank in range(count):
        assert started(one) is None
        one.called(rank, 0)
    assert started(one) == 1
    assert started(one) is None


def test_riders_do_not_count() -> None:
    one = calls(3, wait_for=2)
    one.called(0, 0)
    one.rode(1, 0)
    assert started(one) is None
    one.called(1, 0)
    assert started(one) == 1


def test_a_call_that_a_start_has_overtaken_is_none() -> None:
    one = calls(2, wait_for=1)
    one.called(0, 0)
    assert started(one) == 1
    one.called(1, 0)  # it did not know of round 1
    assert started(one) is None
    one.completed(1)
    one.called(1, 1)
    assert started(one) == 2


def test_the_quorum_shrinks_to_those_that_step() -> None:
    one = calls(3, wait_for="all")
    one.called(0, 0)
    one.paused(1, ended=True)
    assert started(one) is None
    one.is_there(2, is_so=False)
    assert started(one) == 1


def test_the_bound_waits_for_one_that_computes_and_is_there() -> None:
    one = calls(2, wait_for=1, max_staleness=2)
    for number in (1, 2):
        one.called(0, number - 1)
        assert started(one) == number
        one.completed(number)
    one.workers[1].computing = 0
    one.called(0, 2)
    assert started(one) is None
    one.is_there(1, is_so=False)
    assert one.may_start()
    one.is_there(1)
    one.rode(1, 2)
    assert started(one) == 3


def test_the_drawn_one_starts_the_round_and_others_when_it_does_not_step() -> None:
    drawn = []
    for seed in range(40):
        one = calls(4, wait_for="designated", seed=seed)
        for rank in range(3):
            one.called(rank, 0)
        may = one.may_start()
        one.called(3, 0)
        assert one.may_start()
        drawn.append(may)
        if not may:  # rank 3 is the one: without it another is drawn, among those that have called
            one = calls(4, wait_for="designated", seed=seed)
            for rank in range(3):
                one.called(rank, 0)
            one.paused(3, ended=True)
            assert one.may_start()
    assert 0 < drawn.count(False) < 25


def test_all_settle_together_and_step_again() -> None:
    one = calls(2)
    one.paused(0, ended=False)
    assert not one.may_pause()
    one.paused(1, ended=True)
    assert one.may_pause() and not one.all_ended
    one.resumed(one.begin())
    assert [worker.activity for worker in one.workers] == ["stepping", "ended"]


@pytest.mark.seeds(60, 200)
def test_two_starts_are_a_whole_step_of_the_second_ones_caller_apart(seed: int) -> None:
    """Workers step at random; whoever is in the quorum of a start has begun its step after the start before."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 3, 5, 8])
    one = calls(size, wait_for=draw.choice([1, "majority", "all", min(2, size)]), max_staleness=draw.choice([1, 16]))
    last_start, knows = -1, [0] * size
    begun, waiting = [0] * size, [False] * size
    for now in range(1, 300):
        free = [rank for rank in range(size) if not waiting[rank]]
        assert free, "nobody can step: a deadlock"
        rank = draw.choice(free)
        if one.started > knows[rank]:
            one.rode(rank, one.started)
            knows[rank], begun[rank] = one.started, now
        else:
            one.called(rank, one.started)
            waiting[rank] = True
        callers = set(one.callers)
        if one.may_start():
            assert all(begun[caller] >= last_start for caller in callers)
            number = one.begin()
            one.completed(number)
            last_start = now
            for other in range(size):
                if waiting[other]:
                    waiting[other], knows[other], begun[other] = False, number, now


def test_a_quorum_is_one_of_those_that_have_not_died() -> None:
    calls = Calls(Agreed(size=5, wait_for="majority"))
    assert calls.quorum == 3
    for rank in (3, 4, 4):
        calls.died(rank)
    assert calls.quorum == 2
    calls.called(0, 0)
    assert not calls.may_start()
    calls.called(1, 0)
    assert calls.may_start()
    calls.called(3, 0)
    for rank in (0, 1, 2):
        calls.paused(rank, ended=True)
    calls.died(3)
    assert calls.may_pause()
    assert calls.all_ended


def test_a_newcomer_that_dies_before_its_round_takes_effect_stays_dead() -> None:
    calls = Calls(Agreed(size=2, max_size=4))
    calls.died(2)
    calls.takes_effect(1, [2, 3], is_pause=False)
    assert (*calls.inside,) == (0, 1, 3)


@pytest.mark.parametrize(("fraction", "size", "wanted"), [(0.28, 25, 7), (0.07, 100, 7), (0.5, 3, 2), (0.9, 4, 4)])
def test_a_fraction_is_the_decimal_that_was_written(fraction: float, size: int, wanted: int) -> None:
    assert Agreed(size=size, wait_for=fraction).quorum == wanted


@pytest.mark.parametrize("seed", range(20))
def test_a_quorum_is_noticed_after_any_change(seed: int) -> None:
    """It is decided anew after each change only; what is kept is what a decision now gives."""
    draw = random.Random(seed)
    calls_of_all = calls(4, wait_for=draw.choice([1, 2, "majority", "all", "designated"]))
    for _ in range(60):
        rank = draw.randrange(4)
        changes = [
            lambda: calls_of_all.called(rank, calls_of_all.started),  # noqa: B023
            lambda: calls_of_all.rode(rank, calls_of_all.started),  # noqa: B023
            lambda: calls_of_all.waits(rank),  # noqa: B023
            lambda: calls_of_all.went_away(rank),  # noqa: B023
            lambda: calls_of_all.paused(rank, ended=False),  # noqa: B023
            lambda: calls_of_all.is_there(rank, is_so=draw.random() < 0.7),  # noqa: B023
            lambda: calls_of_all.resumed(calls_of_all.started),
            lambda: calls_of_all.begin(),
        ]
        draw.choice(changes)()
        fresh = bool(calls_of_all.callers) and calls_of_all._are_a_quorum()
        assert calls_of_all._is_called_for() == fresh
