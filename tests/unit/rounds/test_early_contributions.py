"""Contributions that are sent with calls, where there are many workers: each counts once, whoever leads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from quorate.core.vectors import Flat
from quorate.rounds.messages import Note
from quorate.rounds.pending import PendingGradients
from tests.unit.rounds.test_member import LAYOUT, Bench

SIZE = 16


class CountedBench(Bench):
    """Counts the messages from one member to another, by kind."""

    def __init__(self, size: int = SIZE, **settings: Any) -> None:
        self.kinds = Counter[str]()
        super().__init__(size, **settings)

    def _sender(self, source: int) -> Any:
        send = super()._sender(source)

        def counted(to: int, header: dict[str, Any], vector: Flat | None) -> None:
            self.kinds.update([header["kind"]] if to != source else [])
            send(to, header, vector)

        return counted

    def pending(self, rank: int) -> PendingGradients:
        pending = self.members[rank].pending
        assert isinstance(pending, PendingGradients)
        return pending

    def sum_of(self, number: int, rank: int = 0) -> float:
        completed = self.members[rank].log.get(number)
        assert completed is not None and completed.sum is not None
        return float(completed.sum.parts[0][0])

    def ledgers_hold(self) -> None:
        """Every gradient is taken once, or pending."""
        for rank in range(len(self.members)):
            ledger = self.pending(rank).ledger
            assert ledger.produced == ledger.taken + self.pending(rank).weight


def test_workers_that_wait_for_all_send_one_message_each() -> None:
    bench = CountedBench(wait_for="all")
    for rank in range(SIZE):
        bench.call(rank)
    bench.deliver()
    assert bench.kinds == {"note": SIZE - 1, "round": SIZE - 1}
    assert bench.sum_of(1) == SIZE
    bench.ledgers_hold()


def test_workers_that_compute_are_asked() -> None:
    bench = CountedBench(wait_for=8)
    for rank in range(7):
        bench.call(rank)
    bench.pending(15).add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 1, None)
    bench.call(7)
    bench.deliver()
    assert bench.kinds == {"note": 7, "start": 8, "give": 8, "round": 15}
    assert bench.sum_of(1) == 9
    bench.ledgers_hold()


@pytest.mark.parametrize("settings", [{"size": 15}, {"vector_bytes": 1 << 16}, {"fragments": 2, "size": 15}])
def test_few_workers_and_large_vectors_are_asked(settings: dict[str, Any]) -> None:
    bench = CountedBench(**{"size": SIZE, "wait_for": "all", **settings})
    for rank in range(len(bench.members)):
        bench.call(rank)
    bench.deliver()
    assert bench.kinds["give"] == len(bench.members) - 1


def test_a_pause_takes_what_came_after_the_call() -> None:
    """A worker whose wait is over without a round contributes again, and pauses: nothing is pending after it."""
    bench = CountedBench(wait_for="all")
    bench.call(3)
    bench.deliver()
    bench.pending(3).add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 2, None)
    for rank in range(SIZE):
        bench.members[rank].note(Note("pause"), 0.0)
    bench.deliver()
    assert bench.logs() == [(1, 0)] * SIZE
    assert bench.sum_of(1, rank=3) == 2
    assert not bench.pending(3).entries
    bench.ledgers_hold()


def test_a_second_call_for_a_round_sends_the_same() -> None:
    """The leader may have used the first: the second gradient is in the next round."""
    bench = CountedBench(wait_for=2)
    bench.call(3)
    bench.call(3)
    bench.call(4)
    bench.deliver()
    assert bench.sum_of(1) == 2
    assert [entry.version for entry in bench.pending(3).entries] == [0]
    bench.ledgers_hold()


def test_a_new_leader_asks_again() -> None:
    bench = CountedBench(wait_for="all")
    for rank in range(1, SIZE):
        bench.call(rank)
    bench.deliver()
    for rank in range(1, SIZE):
        bench.members[rank].have_died([0], 0.1)
    bench.members[1].stand(1, 0.1)
    bench.deaf = {0}
    bench.deliver()
    assert set(bench.logs()[1:]) == {(1, 1)}
    assert bench.sum_of(1, rank=1) == SIZE - 1
    bench.ledgers_hold()


def test_a_silent_worker_is_left_out_and_contributes_to_the_next_round() -> None:
    bench = CountedBench(wait_for=2)
    bench.call(3)
    bench.deliver()
    leader = bench.members[0].leader
    assert leader is not None
    leader.are_absent([3])
    bench.deaf = {3}
    bench.call(4)
    bench.call(5)
    bench.deliver()
    assert bench.sum_of(1) == 2
    bench.deaf = set()
    bench.deliver()
    assert bench.members[3].log.newest == 1
    assert bench.pending(3).weight == 1
    for rank in (3, 4):
        bench.call(rank)
    bench.deliver()
    assert bench.sum_of(2) == 3
    bench.ledgers_hold()
