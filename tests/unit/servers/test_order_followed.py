"""An order that follows another's decisions, and decides itself when that one is gone, at random moments."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from quorate.core.servers import ServerTerms
from quorate.servers.order import Decision, Order, Push

SEEDS = range(25)
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync, 1 backup": {"backup": 1},
    "sync, 1 backup carried": {"backup": 1, "late": "carry"},
    "bounded by 0": {"mode": "bounded", "max_staleness": 0},
    "bounded by 2": {"mode": "bounded", "max_staleness": 2},
    "async": {"mode": "async"},
    "softsync 2": {"mode": "async", "softsync": 2},
    "in order": {"mode": "async", "in_order": True},
    "bounded, in order": {"mode": "bounded", "max_staleness": 1, "in_order": True},
}
Event = tuple[str, Any]


class Play:
    """`size` workers push `steps` gradients each to two orders, which hear of them at different moments; the first one
    decides, and is gone at a random moment. A worker reads when either has told it to."""

    def __init__(self, size: int, seed: int, *, steps: int = 8, **terms: Any) -> None:
        self.draw, self.size, self.steps = random.Random(seed), size, steps
        of = ServerTerms(servers=(0, 1), **{"mode": "sync", **terms})
        self.orders = [Order(of, range(size)), Order(of, range(size), decides=False)]
        self.log: list[Decision] = []
        self.told = 0
        """How many decisions the second one has followed."""
        self.way: list[list[deque[Event]]] = [[deque() for _ in range(size)] for _ in self.orders]
        self.versions, self.clocks = [0] * size, [0] * size
        self.waits: list[int | None] = [None] * size
        self.has_read: list[set[int]] = [set() for _ in range(size)]
        self.reads: list[tuple[int, int, int]] = []
        """Who has read, behind which push, and how many decisions there were."""
        self.left = set[int]()
        self.alive = [0, 1]
        self.gone_after = self.draw.randrange(5 * size * steps)
        self.is_over = False
        self._run()

    def _run(self) -> None:
        for moment in range(100_000):
            if moment == self.gone_after:
                self._first_is_gone()
            doable = [self._push(rank) for rank in range(self.size) if self._may_push(rank)]
            doable += [
                self._arrives(order, rank) for order in self.alive for rank in range(self.size) if self.way[order][rank]
            ]
            if self.told < len(self.log) and 0 in self.alive:
                doable.append(self._tell)
            if not doable:
                break
            self.draw.choice(doable)()
        if 0 in self.alive:
            self._first_is_gone()

    def _may_push(self, rank: int) -> bool:
        return self.waits[rank] is None and rank not in self.left

    def _push(self, rank: int) -> Any:
        def act() -> None:
            if self.clocks[rank] == self.steps + rank % 2:
                self.left.add(rank)
                events: list[Event] = [("leaves", rank), ("asks", rank)]
            else:
                self.clocks[rank] += 1
                self.waits[rank] = self.clocks[rank]
                events = [("push", Push(rank, self.clocks[rank], self.versions[rank]))]
            for order in self.alive:
                self.way[order][rank].extend(events)

        return act

    def _arrives(self, at: int, rank: int) -> Any:
        def act() -> None:
            kind, what = self.way[at][rank].popleft()
            order = self.orders[at]
            if kind == "push":
                found = order.pushed(what)
            else:
                found = order.leaves(what, "ended") if kind == "leaves" else order.asks(what)
            assert not found or order.decides
            self._decided(found)

        return act

    def _decided(self, found: list[Decision]) -> None:
        for one in found:
            self.log.append(one)
            self.is_over |= one.is_last
            for rank, number in one.readers:
                if number:
                    assert self.waits[rank] == number
                    self.waits[rank], self.versions[rank] = None, one.version
                    self.reads.append((rank, number, len(self.log)))

    def _tell(self) -> None:
        self.orders[1].follow(self.log[self.told])
        self.told += 1

    def _first_is_gone(self) -> None:
        while self.told < len(self.log):  # what anybody has been told the next one gets to know
            self._tell()
        self.alive = [1]
        if not self.is_over:
            self._decided(self.orders[1].decide())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("mode", MODES)
class TestEveryMode:
    def test_all_end_and_each_gradient_counts_once_or_is_dropped(self, mode: str, size: int) -> None:
        for seed in SEEDS:
            play = Play(size, seed, **MODES[mode])
            taken = [(x.source, x.number) for one in play.log for x in one.taken]
            dropped = [key for one in play.log for key in one.dropped]
            pushed = [(rank, number + 1) for rank in range(size) for number in range(play.clocks[rank])]
            assert sorted(taken + dropped) == pushed, f"seed {seed}"
            assert play.is_over and play.clocks == [play.steps + rank % 2 for rank in range(size)]
            if "backup" not in mode:
                assert not dropped

    def test_versions_count_steps(self, mode: str, size: int) -> None:
        for seed in SEEDS:
            version = 0
            for one in Play(size, seed, **MODES[mode]).log:
                version += bool(one.taken)
                assert one.version == version


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_reads_see_all_that_is_older_than_the_bound(bound: int, size: int) -> None:
    for seed in SEEDS:
        play = Play(size, seed, mode="bounded", max_staleness=bound)
        for rank, number, count in play.reads:
            seen = {(x.source, x.number) for one in play.log[:count] for x in one.taken}
            older = {(other, n) for other in range(size) for n in range(1, min(number - bound, play.clocks[other]) + 1)}
            assert older <= seen, f"seed {seed}: rank {rank} behind {number}"
            assert {(rank, n) for n in range(1, number + 1)} <= seen


def test_in_order_nothing_changes_when_another_decides() -> None:
    for seed in SEEDS:
        one, other = (Play(3, s, mode="async", in_order=True) for s in (seed, seed + 1000))
        assert [x.taken for x in one.log if x.taken] == [x.taken for x in other.log if x.taken]


class TestAgain:
    def test_who_lacks_some_reads_again_though_it_was_told_to_another(self) -> None:
        terms = ServerTerms(servers=(0, 1), mode="async")
        first, second = (Order(terms, range(2), decides=is_first) for is_first in (True, False))
        push = Push(0, 1, 0)
        (one,) = first.pushed(push)
        second.pushed(push)
        second.follow(one)
        assert one.readers == ((0, 1),)
        assert second.asks_again(0, 1) == []
        (again,) = second.decide()
        assert (again.readers, again.taken, again.version) == (((0, 1),), (), 1)

    @pytest.mark.parametrize("is_asked_first", [True, False])
    def test_as_often_as_it_asks(self, is_asked_first: bool) -> None:
        """Whether the second order hears of the question or of the answer first."""
        terms = ServerTerms(servers=(0, 1), mode="async")
        first, second = (Order(terms, range(2), decides=is_first) for is_first in (True, False))
        for one in first.pushed(Push(0, 1, 0)):
            second.follow(one)
        (again,) = first.asks_again(0, 1)
        if is_asked_first:
            second.asks_again(0, 1)
        second.follow(again)
        if not is_asked_first:
            second.asks_again(0, 1)
        assert second.decide() == []
        (again,) = second.asks_again(0, 1)  # it may again lack some
        assert again.readers == ((0, 1),)

    def test_what_ended_a_stretch_is_told_again_as_it_was(self) -> None:
        order = Order(ServerTerms(servers=(0, 1), mode="async"), range(3))
        for rank, how in enumerate(("pauses", "pauses", "ended")):
            order.leaves(rank, how)  # type: ignore[arg-type]
        order.asks(0)
        (last,) = order.asks(1)
        assert (last.is_last, last.there, last.ended) == (True, (0, 1), (2,))
        (again,) = order.next_era(last).asks_again(1, 0)
        assert (again.readers, again.there, again.ended, again.repeats) == (((1, 0),), (0, 1), (2,), True)


def test_what_the_dead_had_pushed_and_nobody_has_decided_is_dropped() -> None:
    for in_order in (False, True):
        order = Order(ServerTerms(servers=(0, 1), mode="bounded", in_order=in_order), range(2), decides=False)
        order.pushed(Push(1, 1, 0))
        order.pushed(Push(1, 2, 0))
        order.died(1)
        found = order.decide()
        assert [key for one in found for key in one.dropped] == [(1, 1), (1, 2)]
        assert not order.decide()


class TestJoining:
    """A second order, that hears of who joins before or after it hears what the first has decided."""

    @pytest.mark.parametrize("hears_first", [True, False])
    @pytest.mark.parametrize("withdraws", [True, False])
    def test_who_is_there_does_not_go_by_what_is_heard_first(self, hears_first: bool, withdraws: bool) -> None:
        terms = ServerTerms(servers=(0, 1), mode="async")
        first, second = (Order(terms, range(2), decides=is_first) for is_first in (True, False))
        (one,) = first.comes(2, 1)

        def hears() -> None:
            second.comes(2, 1)
            if withdraws:
                second.withdraws(2, 1)

        if hears_first:
            hears()
        second.follow(one)
        if not hears_first:
            hears()
        assert second.decide() == []
        assert second.everyone == ({0, 1} if withdraws else {0, 1, 2})

    @pytest.mark.parametrize("how", ["pauses", "ended"])
    def test_a_death_that_the_end_of_an_era_does_not_know_of_counts_in_the_next(self, how: str) -> None:
        terms = ServerTerms(servers=(0, 1))
        first, second = (Order(terms, range(3), decides=is_first) for is_first in (True, False))
        for order in (first, second):
            for rank in range(3):
                order.leaves(rank, how if rank == 2 else "pauses")  # type: ignore[arg-type]
        last = [one for rank in range(3) for one in first.asks(rank)][-1]
        assert last.is_last and 2 in (*last.there, *last.ended)
        second.died(2)
        second.follow(last)
        second = second.next_era(last)
        assert second.everyone == {0, 1} and second.decide() == []
        decisions = [one for rank in range(2) for one in second.pushed(Push(rank, 1, 0))]
        assert [len(one.taken) for one in decisions] == [2], "nobody waits for the dead"

    def test_what_nobody_has_decided_the_next_one_decides(self) -> None:
        order = Order(ServerTerms(servers=(0, 1), mode="async"), range(2), decides=False)
        assert order.comes(2, 1) == []
        (one,) = order.decide()
        assert one.joined == ((2, 0),)

    def test_one_that_lacks_some_of_what_it_joined_with_asks_again(self) -> None:
        terms = ServerTerms(servers=(0, 1), mode="async")
        first, second = (Order(terms, range(2), decides=is_first) for is_first in (True, False))
        (one,) = first.comes(2, 1)
        second.comes(2, 1)
        second.follow(one)
        second.asks_again(2, -1)
        (again,) = second.decide()
        assert (again.readers, again.joined, again.is_whole) == (((2, -1),), ((2, 0),), True)
