"""Which gradients make the steps of servers, over many orders in which they may come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from quorate.core.servers import ServerTerms
from quorate.servers.order import Decision, Order, Push

SIZES = [1, 2, 3, 5]
SEEDS = range(14)
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync, 1 backup": {"backup": 1},
    "sync, 2 backups carried": {"backup": 2, "late": "carry"},
    "bounded by 0": {"mode": "bounded", "max_staleness": 0},
    "bounded by 2": {"mode": "bounded", "max_staleness": 2},
    "async": {"mode": "async"},
    "async, by age": {"mode": "async", "staleness_scaling": "inverse", "step_size": "full"},
    "softsync 1": {"mode": "async", "softsync": 1},
    "softsync 2": {"mode": "async", "softsync": 2},
    "in order": {"mode": "async", "in_order": True},
    "bounded, in order": {"mode": "bounded", "max_staleness": 1, "in_order": True},
}


class Play:
    """Workers that push `steps` gradients each, read, and leave, at random moments; one may die."""

    def __init__(self, size: int, seed: int, *, steps: int = 12, dies: int | None = None, **terms: Any) -> None:
        self.draw = random.Random(seed)
        self.terms = ServerTerms(servers=(0,), **{"mode": "sync", **terms})
        self.order = Order(self.terms, range(size))
        self.size, self.steps, self.dies = size, steps, dies
        self.decisions: list[Decision] = []
        self.pushed: set[tuple[int, int]] = set()
        self.reads: list[tuple[int, int, int]] = []
        """Who has read, having pushed how many, and how many decisions had been made by then."""
        self.clocks = [0] * size
        self.versions = [0] * size
        self.free, self.gone = set(range(size)), set[int]()
        self.dead = set[int]()
        for _ in self._events():
            pass

    def _events(self) -> Iterator[None]:
        while self.free:
            rank = self.draw.choice(sorted(self.free))
            if rank == self.dies and self.clocks[rank] == self.steps // 2:
                self.free.discard(rank)
                self.dead.add(rank)
                self._take(self.order.died(rank))
            elif self.clocks[rank] == self.steps + (rank % 3):  # uneven ends
                self.free.discard(rank)
                self.gone.add(rank)
                self._take(self.order.leaves(rank, "ended"))
            else:
                self.free.discard(rank)
                self.clocks[rank] += 1
                self.pushed.add((rank, self.clocks[rank]))
                self._take(self.order.pushed(Push(rank, self.clocks[rank], self.versions[rank])))
            yield
        assert self.gone | self.dead == set(range(self.size)), "somebody waits for ever"
        for rank in sorted(self.gone):
            self._take(self.order.asks(rank))

    def _take(self, decisions: list[Decision]) -> None:
        for one in decisions:
            self.decisions.append(one)
            if one.is_last:
                continue
            for rank, _ in one.readers:
                assert rank not in self.free, "it had not asked"
                if rank not in self.dead:
                    self.free.add(rank)
                    self.versions[rank] = one.version
                    self.reads.append((rank, self.clocks[rank], len(self.decisions)))

    def taken_up_to(self, count: int) -> set[tuple[int, int]]:
        return {(x.source, x.number) for one in self.decisions[:count] for x in one.taken}


def readers(one: Decision) -> list[int]:
    return [rank for rank, _ in one.readers]


def dropped(play: Play) -> list[tuple[int, int]]:
    return [key for one in play.decisions for key in one.dropped]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
class TestEveryMode:
    def test_each_gradient_counts_once_or_is_dropped(self, mode: str, size: int) -> None:
        for seed in SEEDS:
            for dies in (None, size - 1):
                play = Play(size, seed, dies=dies if size > 1 else None, **MODES[mode])
                counted = [(x.source, x.number) for one in play.decisions for x in one.taken]
                assert sorted(counted + dropped(play)) == sorted(play.pushed)
                if mode != "sync, 1 backup":
                    assert not dropped(play)
                for one in play.decisions:
                    assert sum(x.factor for x in one.taken) == pytest.approx(1.0 if one.taken else 0.0)

    def test_versions_count_steps(self, mode: str, size: int) -> None:
        for seed in SEEDS:
            steps = 0
            for one in Play(size, seed, **MODES[mode]).decisions:
                steps += bool(one.taken)
                assert one.version == steps

    def test_the_last_read_is_of_all(self, mode: str, size: int) -> None:
        for seed in SEEDS:
            play = Play(size, seed, **MODES[mode])
            assert [one.is_last for one in play.decisions].count(True) == 1
            assert readers(play.decisions[-1]) == list(range(size))

    def test_a_staleness_is_the_steps_since_it_read(self, mode: str, size: int) -> None:
        for seed in SEEDS:
            play = Play(size, seed, **MODES[mode])
            read = {(rank, number + 1): self_version(play, at) for rank, number, at in play.reads}
            for one in play.decisions:
                for x in one.taken:
                    assert x.staleness == one.version - 1 - read.get((x.source, x.number), 0)


def self_version(play: Play, at: int) -> int:
    return play.decisions[at - 1].version


@pytest.mark.parametrize("size", SIZES)
class TestBounds:
    @pytest.mark.parametrize("bound", [0, 1, 3])
    @pytest.mark.parametrize("in_order", [False, True])
    def test_reads_see_all_that_is_older_than_the_bound(self, bound: int, in_order: bool, size: int) -> None:
        for seed in SEEDS:
            play = Play(size, seed, mode="bounded", max_staleness=bound, in_order=in_order)
            for rank, clock, at in play.reads:
                seen = play.taken_up_to(at)
                assert (rank, clock) in seen, "its own"
                older = {key for key in play.pushed if key[1] <= clock - bound}
                assert older <= seen

    def test_bound_0_is_a_step_of_all_that_are_there(self, size: int) -> None:
        for seed in SEEDS:
            bounded, sync = Play(size, seed, mode="bounded", max_staleness=0), Play(size, seed)
            assert [(one.taken, one.rate) for one in bounded.decisions] == [
                (one.taken, one.rate) for one in sync.decisions
            ]
            for one in sync.decisions:
                assert len({x.number for x in one.taken}) <= 1
                assert all(x.staleness == 0 for x in one.taken)

    @pytest.mark.parametrize("backup", [1, 2])
    def test_a_step_goes_without_the_backups(self, backup: int, size: int) -> None:
        for seed in SEEDS:
            play = Play(size, seed, backup=backup)
            full = [one for one in play.decisions if one.taken][:10]
            assert min(len(one.taken) for one in full) == max(1, size - backup)
            assert all(x.staleness == 0 for one in play.decisions for x in one.taken)

    def test_in_order_a_run_is_the_same_however_they_come(self, size: int) -> None:
        for seed in SEEDS:
            for mode in ({"mode": "async"}, {"mode": "bounded", "max_staleness": 2}, {}):
                first, again = (Play(size, s, in_order=True, **mode) for s in (seed, seed + 1000))
                assert [one.taken for one in first.decisions if one.taken] == [
                    one.taken for one in again.decisions if one.taken
                ]

    def test_in_order_gradients_count_by_step_and_rank(self, size: int) -> None:
        for seed in SEEDS:
            play = Play(size, seed, mode="async", in_order=True)
            order = [(x.number, x.source) for one in play.decisions for x in one.taken]
            assert order == sorted(order)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_mean_staleness_of_softsync_is_about_n(n: int, size: int) -> None:
    play = Play(size, 0, steps=200, mode="async", softsync=n)
    ages = [x.staleness for one in play.decisions[50:-50] for x in one.taken]
    assert sum(ages) / len(ages) == pytest.approx(n, rel=0.25)


def test_learning_rates_are_shares_of_a_synchronous_step() -> None:
    def rates(**terms: Any) -> set[float]:
        return {round(one.rate, 9) for one in Play(4, 1, **terms).decisions[:20] if one.taken}

    assert rates() == {1.0}
    assert rates(mode="async") == {0.25}
    assert rates(mode="async", step_size="full") == {1.0}
    assert rates(mode="async", softsync=2) == {0.5}
    assert min(rates(mode="async", step_size="full", staleness_scaling="inverse")) < 1.0


@pytest.mark.parametrize(("terms", "rate"), [({}, 0.5), ({"late": "carry"}, 0.5), ({"step_size": "full"}, 1.0)])
def test_those_that_go_on_alone_after_a_backup_go_less_far(terms: dict[str, Any], rate: float) -> None:
    """Of three one is a backup, so two gradients are a whole step; three that come, one carried, are no more."""
    order = Order(ServerTerms(servers=(0,), backup=1, **terms), range(3))
    order.pushed(Push(0, 1, 0))
    (whole,) = order.pushed(Push(1, 1, 0))
    order.pushed(Push(2, 1, 0))
    order.pushed(Push(0, 2, 1))
    more = [one for one in order.pushed(Push(1, 2, 1)) if one.taken]
    assert [whole.rate, *(one.rate for one in more)] == [1.0, 1.0]
    order.leaves(0, "ended")
    order.leaves(1, "ended")
    assert [one.rate for one in order.pushed(Push(2, 2, 2)) if one.taken] == [rate]


def test_an_age_divides_what_a_gradient_counts() -> None:
    order = Order(ServerTerms(servers=(0,), mode="async", softsync=1, staleness_scaling="inverse"), range(2), 10)
    assert not [one for one in order.pushed(Push(0, 1, version=10, reads=False)) if one.taken]
    (one,) = order.pushed(Push(1, 1, version=6, reads=False))
    assert [(x.staleness, x.factor) for x in one.taken] == [(0, 0.8), (4, 0.2)]
    assert one.rate == pytest.approx((1 + 1 / 4) / 2)


def test_what_has_come_before_its_turn_counts_though_its_worker_leaves() -> None:
    order = Order(ServerTerms(servers=(0,), mode="async", in_order=True), range(2))
    assert not order.pushed(Push(1, 1, 0, reads=False))
    assert not order.leaves(1, "ended")
    found = order.pushed(Push(0, 1, 0, reads=False))
    assert [(x.source, x.number) for one in found for x in one.taken] == [(0, 1), (1, 1)]
    assert order.ended == {1}
    assert order.pushed(Push(0, 2, 1, reads=False))[0].taken, "it is waited for no more"


def test_what_the_dead_had_pushed_before_its_turn_is_dropped() -> None:
    order = Order(ServerTerms(servers=(0,), mode="async", in_order=True), range(2))
    order.pushed(Push(1, 1, 0, reads=False))
    assert [one.dropped for one in order.died(1)] == [((1, 1),)]


def test_who_leaves_and_is_not_taken_in_yet_reads_with_the_others() -> None:
    order = Order(ServerTerms(servers=(0,), mode="async", in_order=True), range(2))
    order.pushed(Push(1, 1, 0, reads=False))
    order.leaves(1, "pauses")
    assert not order.asks(1)
    order.pushed(Push(0, 1, 0, reads=False))
    order.leaves(0, "pauses")
    (last,) = order.asks(0)
    assert (last.is_last, readers(last)) == (True, [0, 1])


@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_who_has_no_gradient_is_read_to_and_does_not_count(mode: str) -> None:
    order = Order(ServerTerms(servers=(0,), mode=mode, softsync=2), range(2))  # type: ignore[arg-type]
    found = [*order.pushed(Push(0, 1, 0, count=0)), *order.pushed(Push(1, 1, 0))]
    assert [(x.source, x.factor) for one in found for x in one.taken] == [(1, 1.0)]
    assert [key for one in found for key in one.dropped] == [(0, 1)]
    assert sorted(rank for one in found for rank in readers(one)) == [0, 1]
    assert found[-1].version == 1


def test_shares_are_those_of_the_living() -> None:
    order = Order(ServerTerms(servers=(0,), mode="async"), range(4))
    order.died(3)
    assert order.pushed(Push(0, 1, 0))[0].rate == pytest.approx(1 / 3)


def test_a_dead_worker_does_not_hold_the_others() -> None:
    order = Order(ServerTerms(servers=(0,), mode="bounded", max_staleness=0), range(3))
    order.pushed(Push(0, 1, 0))
    assert not order.pushed(Push(1, 1, 0))
    (one,) = order.died(2)
    assert (readers(one), len(one.taken)) == ([0, 1], 2)


def test_those_that_rest_read_what_all_have_come_to_before_they_set_out() -> None:
    order = Order(ServerTerms(servers=(0,), mode="async", softsync=1), range(3))
    order.pushed(Push(0, 1, 0, reads=False))
    order.leaves(2, "ended")
    assert order.leaves(0, "pauses")[0].taken, "nothing is left behind"
    assert not order.asks(0), "one trains on"
    order.leaves(1, "pauses")
    (last,) = order.asks(1)
    assert (readers(last), last.is_last) == ([0, 1], True)
    assert order.ended == {2}


class TestJoining:
    def test_one_that_joins_begins_at_the_clock_of_the_last_and_is_waited_for(self) -> None:
        order = Order(ServerTerms(servers=(0,), mode="bounded", max_staleness=1), range(2))
        for source, number in ((0, 1), (1, 1), (0, 2), (1, 2), (0, 3)):
            order.pushed(Push(source, number, 0))
        (one,) = order.comes(2, 1)
        assert (one.joined, one.readers, one.is_whole) == (((2, 2),), ((2, -1),), True)
        (read,) = order.pushed(Push(1, 3, 0))
        assert readers(read) == [1]  # 3 <= 2 + 1
        assert order.pushed(Push(0, 4, 0)) == []  # 4 > 2 + 1: until the new one has pushed
        (read,) = order.pushed(Push(2, 3, 0))
        assert readers(read) == [0, 2]

    def test_it_counts_for_shares(self) -> None:
        order = Order(ServerTerms(servers=(0,), mode="async"), range(3))
        order.comes(3, 1)
        (one,) = order.pushed(Push(0, 1, 0))
        assert one.rate == 1 / 4
        order.died(3)
        assert order.pushed(Push(0, 2, 1))[0].rate == 1 / 3

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_one_that_withdraws_was_never_there(self, mode: str) -> None:
        order = Order(ServerTerms(servers=(0,), mode=mode), range(2))  # type: ignore[arg-type]
        order.comes(2, 1)
        first = order.pushed(Push(0, 1, 0))
        last = [*order.pushed(Push(1, 1, 0)), *order.withdraws(2, 1)]
        taken = [x.source for one in (*first, *last) for x in one.taken]
        assert sorted(taken) == [0, 1]
        assert order.pushed(Push(0, 2, order.version)) == [] if mode == "sync" else True
        found = order.pushed(Push(1, 2, order.version))
        assert found[-1].rate == (1 if mode == "sync" else 1 / 2)
        assert order.comes(2, 2)[0].readers == ((2, -2),)  # it may try again

    def test_all_rest_though_one_was_about_to_join(self) -> None:
        order = Order(ServerTerms(servers=(0,), mode="async"), range(1))
        order.comes(1, 1)
        assert order.leaves(0, "pauses") == order.asks(0) == []
        (last,) = order.withdraws(1, 1)
        assert last.is_last and last.there == (0,)
