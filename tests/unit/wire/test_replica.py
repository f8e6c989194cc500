"""Copies of one board: what holds whatever is lost, and how soon those that are left go on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from quorate.wire.members import GONE, Coming, Death, history_in, history_to_bytes
from quorate.wire.replicated.state import is_majority
from tests.support.replicas import Workers

SILENCE = 5.0


def writes_come_to_pass(workers: Workers, ranks: Sequence[int]) -> None:
    """A write of each of them does, within a second."""
    numbers = {rank: workers.write(rank, do="add", key="n", amount=1) for rank in ranks}
    workers.run_until(
        lambda: all(n in workers.members[rank].results for rank, n in numbers.items()), 1.0 + 10 * workers.delay
    )
    assert len({workers.members[rank].results[n][1] for rank, n in numbers.items()}) == len(ranks)


def test_writes_have_one_order_and_one_winner() -> None:
    workers = Workers(5)
    for rank in range(5):
        workers.write(rank, do="swap", key="k", expected=None, value=str(rank))
    workers.run(1.0)
    assert [member.results[0][1] for member in workers.members].count(True) == 1
    assert len({tuple(member.applied) for member in workers.members}) == 1
    assert len({member.replica.state.values["k"] for member in workers.members}) == 1


def test_a_read_sees_what_was_written_before_it_was_asked_for() -> None:
    workers = Workers(3)
    number = workers.write(1, do="set", key="k", value="new")
    workers.run_until(lambda: number in workers.members[1].results)
    workers.members[2].replica.read(7)
    workers.run_until(lambda: 7 in workers.members[2].reads)
    assert workers.members[2].replica.state.values["k"] == b"new"


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_who_is_cut_off_stops_and_the_majority_goes_on(size: int) -> None:
    """Also where the leader is: of two halves that with the lowest rank goes on."""
    for some in range(1, size):
        for left in (range(some), range(size - some, size)):
            workers = Workers(size, some)
            workers.run(2.0)
            others = [rank for rank in range(size) if rank not in left]
            workers.cut_between(left, others)
            goes_on = max(left, others, key=lambda ranks: (len(ranks), 0 in ranks))
            stops = [rank for rank in range(size) if rank not in goes_on]
            took = workers.run_until(lambda: all(workers.gone(r) == set(stops) for r in goes_on))  # noqa: B023
            assert SILENCE - workers.limits.beat - 0.1 <= took <= SILENCE + 0.5
            workers.run(1.0)
            assert workers.going == list(goes_on)
            writes_come_to_pass(workers, list(goes_on))
            workers.heal()
            workers.run(3.0)
            assert workers.going == list(goes_on)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("away", [[0], [3], [0, 1], [2, 3], [1, 2, 3]])
def test_a_cut_shorter_than_silence_is_nobodys_death(away: list[int], both: bool) -> None:
    for seed in range(5):
        workers = Workers(4, seed)
        workers.run(1.0 + seed / 10)
        workers.cut_between(away, [rank for rank in range(4) if rank not in away], both=both)
        pending = [workers.write(rank, do="add", key="n", amount=1) for rank in range(4)]
        workers.run(3.0)
        workers.heal()
        workers.run(2.0)
        assert workers.going == [0, 1, 2, 3] and workers.gone(0) == set()
        assert {member.results[n][1] for member, n in zip(workers.members, pending, strict=True)} == {1, 2, 3, 4}


@pytest.mark.parametrize("way", ["out", "in"])
@pytest.mark.parametrize("away", [0, 1, 4])
def test_who_is_heard_and_hears_nobody_is_cut_off_as_well(away: int, way: str) -> None:
    for seed in range(5):
        workers = Workers(5, seed)
        workers.run(1.0)
        others = [rank for rank in range(5) if rank != away]
        workers.cut_between([away] if way == "out" else others, others if way == "out" else [away], both=False)
        took = workers.run_until(lambda: workers.going == others)  # noqa: B023
        assert took <= SILENCE + 1.0
        workers.run_until(lambda: workers.gone(others[0]) == {away})  # noqa: B023
        writes_come_to_pass(workers, others)


def test_half_of_them_may_be_lost_again_and_again() -> None:
    workers = Workers(6)
    for lost in ([0, 1], [2], [4]):
        workers.run(1.0)
        for rank in lost:
            workers.kill(rank, is_seen=False)
        workers.run_until(lambda: all(workers.gone(rank) >= set(lost) for rank in workers.going))  # noqa: B023
    assert workers.going == [3, 5]
    writes_come_to_pass(workers, [3, 5])


@pytest.mark.parametrize("dead", [0, 2])
def test_a_process_that_ends_is_missed_at_once(dead: int) -> None:
    workers = Workers(3)
    workers.run(1.0)
    workers.kill(dead)
    left = [rank for rank in range(3) if rank != dead]
    assert workers.run_until(lambda: all(workers.gone(rank) == {dead} for rank in left)) < 1.0


def test_where_all_have_stood_still_nobody_is_dead() -> None:
    """As on a machine that was put to sleep."""
    workers = Workers(3)
    workers.run(1.0)
    for member in workers.members:
        member.is_alive = False
    workers.run(20.0)
    for rank, member in enumerate(workers.members):
        member.is_alive = True
        workers.look(rank)
    workers.run(5.0)
    assert workers.going == [0, 1, 2] and not any(workers.gone(rank) for rank in range(3))
    writes_come_to_pass(workers, [0, 1, 2])


def test_one_that_joins_has_everything_and_votes_from_then_on() -> None:
    workers = Workers(3)
    writes_come_to_pass(workers, [0, 1, 2])
    workers.kill(0, is_seen=False)
    workers.run_until(lambda: workers.gone(1) == {0})
    new = workers.join()
    replica = workers.members[new].replica
    workers.run_until(lambda: replica.applied > 0, 1.0)
    assert replica.state.counters == workers.members[1].replica.state.counters and new not in replica.state.voters
    value = history_to_bytes([*history_in(replica.state.values[GONE]), Coming(new)]).decode()
    known = replica.state.values[GONE].decode("latin-1")
    workers.write(new, do="swap", key=GONE, expected=known, value=value)
    workers.run_until(lambda: replica.state.voters == {1, 2, new}, 1.0)
    workers.kill(2, is_seen=False)
    workers.run_until(lambda: workers.gone(1) == {0, 2} == workers.gone(new))
    writes_come_to_pass(workers, [1, new])


def nothing_is_lost(workers: Workers) -> None:
    """All have applied the same, as far as they have come, and whatever any was told has come to pass is in it."""
    assert all(len(ranks) == 1 for ranks in workers.leaders.values()), "two leaders in one term"
    longest = max((member.applied for member in workers.members), key=len)
    for member in workers.members:
        assert member.applied == longest[: len(member.applied)], "two orders"
    for rank in workers.going:
        assert workers.members[rank].applied == longest
    for rank, member in enumerate(workers.members):
        for number in member.results:
            assert (rank, number) in longest, "what came to pass is lost"


@pytest.mark.seeds(40, 2000)
def test_under_random_cuts_nothing_that_came_to_pass_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4, 5, 6])
    workers = Workers(size, seed, delay=draw.choice([0.001, 0.05, 0.4]))
    for _ in range(draw.randrange(2, 9)):
        some = [rank for rank in range(size) if draw.random() < 0.4]
        others = [rank for rank in range(size) if rank not in some]
        number = draw.random()
        if number < 0.5:
            workers.cut_between(some, others, both=draw.random() < 0.7)
        elif number < 0.6 and len(workers.going) > 1:
            workers.kill(draw.choice(workers.going), is_seen=draw.random() < 0.5)
        elif number < 0.7 and workers.going:
            stopped = workers.members[draw.choice(workers.going)]
            stopped.is_alive = False
            workers.run(draw.uniform(0.1, 8.0))
            stopped.is_alive = True
            workers.look(stopped.replica.rank)
        for _ in range(draw.randrange(6)):
            if workers.going:
                rank = draw.choice(workers.going)
                workers.write(rank, do="add", key="n", amount=1)
            workers.run(draw.random())
        workers.run(draw.choice([0.5, 3.0, 8.0]))
        if draw.random() < 0.6:
            workers.heal()
    workers.heal()
    workers.run(12.0)
    nothing_is_lost(workers)
    if workers.going and workers.delay < 0.1:
        writes_come_to_pass(workers, workers.going)


@pytest.mark.seeds(30, 3000)
def test_under_leaders_that_come_and_go_nothing_that_came_to_pass_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([3, 4, 5])
    workers = Workers(size, seed, delay=draw.choice([0.01, 0.1]))
    for _ in range(12):
        leading = [rank for rank in workers.going if workers.members[rank].replica.office is not None]
        some = {*leading[:1], *(rank for rank in range(size) if draw.random() < 0.2)}
        workers.cut_between(some, set(range(size)) - some, both=draw.random() < 0.8)
        for _ in range(draw.randrange(5, 30)):
            if workers.going:
                workers.write(draw.choice(workers.going), do="add", key="n", amount=1)
            workers.run(draw.uniform(0.0, 0.2))
        workers.heal()
        workers.run(draw.choice([0.05, 0.2, 1.0]))
    workers.run(12.0)
    nothing_is_lost(workers)


def test_an_election_needs_a_majority_of_those_before_and_after_a_death_that_may_be_in_force() -> None:
    """Else two sides could elect leaders: one that has seen it written, and one that has not."""
    workers = Workers(5)
    workers.run(1.0)
    leader = workers.members[0].replica
    workers.cut_between([0], [1, 2, 3, 4])
    new = history_to_bytes([Death(rank, "h", "was not heard") for rank in (3, 4)]).decode()
    workers.write(0, do="swap", key=GONE, expected=None, value=new)
    workers.run(0.1)
    assert leader.state.voters == {0, 1, 2, 3, 4}
    assert leader.electors() == [frozenset(range(5)), frozenset(range(3))]
    assert is_majority({0, 1}, leader.electors()[1]) and not is_majority({0, 1}, leader.electors()[0])
