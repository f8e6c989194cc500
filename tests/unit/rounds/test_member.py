"""Members without a wire: messages are delivered, kept back or lost by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from quorate.core.vectors import Flat, Layout, Part, Segment
from quorate.rounds.copies import Copy
from quorate.rounds.leader import Start
from quorate.rounds.member import Member
from quorate.rounds.messages import Note, RoundSignal
from quorate.rounds.terms import Agreed

LAYOUT = Layout((Segment("w", (2,), torch.float32, 0, 0),), (Part(2, torch.float32, torch.device("cpu")),), header=0)


class Bench:
    """`size` members and what they have said to each other; `deaf` ranks get nothing until they are taken out."""

    def __init__(self, size: int, **settings: Any) -> None:
        self.now = 0.0
        self.deaf: set[int] = set()
        self.under_way: list[tuple[int, int, dict[str, Any], Flat | None]] = []
        agreed = Agreed(size=size, **settings)
        self.members = [
            Member(agreed, rank, self._sender(rank), threading.Lock(), lambda: None) for rank in range(size)
        ]

    def _sender(self, source: int) -> Any:
        return lambda to, header, vector: self.under_way.append((source, to, header, vector))

    def deliver(self) -> None:
        """Everything that is under way, and what follows from it."""
        while any(to not in self.deaf for _, to, _, _ in self.under_way):
            place = next(i for i, (_, to, _, _) in enumerate(self.under_way) if to not in self.deaf)
            source, to, header, vector = self.under_way.pop(place)
            self.members[to].received(source, dict(header), vector, self.now)

    def deliver_but(self, kind: str, *, to: int) -> None:
        """As `deliver`; messages of that kind to that rank are lost."""
        send = self.members[0]._send

        def losing(other: int, header: dict[str, Any], vector: Flat | None) -> None:
            if (other, header["kind"]) != (to, kind):
                send(other, header, vector)

        self.members[0]._send = losing
        self.deliver()
        self.members[0]._send = send

    def call(self, rank: int) -> None:
        """`rank` hands in a gradient of ones and calls."""
        member = self.members[rank]
        member.pending.add(Flat([torch.ones(2)], LAYOUT), 1.0, member.log.newest, 1, None)
        member.note(Note("call", None, member.started), self.now)

    def logs(self) -> list[tuple[int, int]]:
        return [(member.log.newest, member.log.term) for member in self.members]


def test_a_round_is_formed_and_told() -> None:
    bench = Bench(3, wait_for=2)
    bench.call(1)
    bench.deliver()
    assert bench.logs() == [(0, 0)] * 3
    bench.call(2)
    bench.deliver()
    assert bench.logs() == [(1, 0)] * 3
    one = bench.members[0].log.get(1)
    assert one is not None and one.sum is not None
    assert one.sum.parts[0].tolist() == [2.0, 2.0]
    assert set(one.contributors) == {1, 2}


def test_one_that_does_not_answer_is_left_out_and_brought_up_when_it_speaks() -> None:
    bench = Bench(3, wait_for=1)
    bench.deaf = {2}
    bench.call(1)
    bench.deliver()
    assert bench.logs() == [(0, 0)] * 3
    bench.now = 0.06
    bench.members[0].passed(bench.now)
    bench.deliver()
    assert bench.logs() == [(1, 0), (1, 0), (0, 0)]
    bench.deaf = set()
    bench.deliver()
    assert bench.logs() == [(1, 0)] * 3


def test_who_knows_most_leads_next() -> None:
    """Rank 1 missed the round that ranks 0 and 2 have; when rank 0 is silent and rank 1 stands, rank 2 has to lead."""
    bench = Bench(3, wait_for=1)
    bench.call(2)
    bench.deaf = {1}
    bench.deliver()
    bench.now = 0.06
    bench.members[0].passed(bench.now)
    bench.deliver()
    bench.under_way.clear()
    bench.deaf = {0}
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    bench.now = 2.0
    bench.members[1].passed(bench.now)
    bench.deliver()
    assert bench.members[2].is_wanted and not bench.members[1].is_wanted
    bench.members[2].stand(2, bench.now)
    bench.deliver()
    bench.now = 3.0
    bench.members[2].passed(bench.now)
    bench.deliver()
    assert bench.logs()[1:] == [(1, 0), (1, 0)]
    bench.call(1)
    bench.deliver()
    assert bench.logs()[1:] == [(2, 2), (2, 2)]


def two_first_rounds() -> Bench:
    """Rank 0 has formed round 1, and nobody got it; rank 1 has formed another one, and rank 2 has that."""
    bench = Bench(3, wait_for=1)
    bench.deaf = {1, 2}
    bench.call(0)
    bench.deliver()
    bench.now = 0.06
    bench.members[0].passed(bench.now)
    bench.deliver()
    assert bench.logs() == [(1, 0), (0, 0), (0, 0)]
    bench.under_way.clear()
    bench.deaf = {0}
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    bench.now = 1.0
    bench.members[1].passed(bench.now)
    bench.call(1)
    bench.deliver()
    bench.now = 2.0
    bench.members[1].passed(bench.now)
    bench.deliver()
    assert bench.logs() == [(1, 0), (1, 1), (1, 1)]
    bench.under_way.clear()
    bench.deaf = set()
    return bench


def test_what_a_later_leader_has_formed_is_newer() -> None:
    bench = two_first_rounds()
    bench.members[0].stand(2, bench.now)
    bench.deliver()
    assert bench.members[0].leader is None
    assert bench.members[1].is_wanted or bench.members[2].is_wanted


def test_what_is_said_to_one_that_is_about_to_lead_is_not_lost() -> None:
    bench = Bench(3, wait_for=2)
    bench.deaf = {0}
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    bench.call(1)
    bench.call(2)
    bench.deliver()
    bench.now = 0.06
    bench.members[1].passed(bench.now)
    bench.deliver()
    assert bench.logs()[1:] == [(1, 1), (1, 1)]


def test_a_former_leader_is_not_listened_to() -> None:
    bench = Bench(3, wait_for=1)
    bench.deaf = {0}
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    bench.now = 0.06
    bench.members[1].passed(bench.now)
    bench.deaf = {1, 2}
    bench.call(0)
    bench.deaf = set()
    bench.under_way = [message for message in bench.under_way if message[0] == 0]
    bench.deliver()
    assert bench.members[0].term == 1 and bench.members[0].leader is None


def test_a_gradient_that_a_round_went_by_waits_again() -> None:
    bench = Bench(2, wait_for=1)
    bench.call(0)
    late = bench.members[1]
    late.pending.add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 1, None)
    bench.deaf = {0}
    bench.under_way, kept = [m for m in bench.under_way if m[1] == 0], []
    bench.deaf = set()
    while bench.under_way:  # what rank 1 gives is kept back until its time is over
        source, to, header, vector = bench.under_way.pop(0)
        if source == 1 and header["kind"] == "give":
            kept.append((source, to, header, vector))
        else:
            bench.members[to].received(source, dict(header), vector, bench.now)
    assert late.pending.weight == 0
    bench.now = 0.06
    bench.members[0].passed(bench.now)
    bench.under_way += kept
    bench.deliver()
    assert bench.logs() == [(1, 0), (1, 0)]
    assert late.pending.weight == 1.0
    assert late.pending.ledger.taken == 0.0


@pytest.mark.parametrize("knows", [True, False])
def test_a_copy_tells_whom_rounds_took_in(knows: bool) -> None:
    bench = Bench(2, wait_for=1)
    bench.call(0)
    bench.call(1)
    bench.deliver()
    source, other = bench.members
    source.applied = source.log.newest
    jump = source.about_copy(source.applied)
    if not knows:
        history = [(number, term, [0]) for number, term, _ in jump.state.history]
        jump = replace(jump, state=replace(jump.state, history=history))
    fresh = Bench(2, wait_for=1).members[1]
    fresh.pending.add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 1, None)
    fresh._start(Start(1, is_pause=False, spans=False), 0.0)
    fresh.jump(jump)
    assert fresh.log.newest == source.log.newest == other.log.newest
    assert fresh.pending.weight == (0.0 if knows else 1.0)


def test_a_copy_that_another_one_has_overtaken_is_left() -> None:
    bench = Bench(2, wait_for=1)
    for _ in range(3):
        bench.call(0)
        bench.deliver()
    source, fresh = bench.members[0], Bench(2, wait_for=1).members[1]
    copies = []
    for source.applied in (2, 3):
        copies.append(Copy(source.about_copy(source.applied), 0, 3, {}, is_whole=False))
    old, new = copies
    fresh.received(0, new.header(), None, 0.0)
    assert fresh.copy is not None
    fresh.copy = None
    fresh.jump(new.jump)
    fresh.received(0, old.header(), None, 0.0)
    assert fresh.copy is None and fresh.log.newest == 3
    fresh.received(0, {**old.header(), "term": 1}, None, 0.0)
    assert fresh.copy is not None, "under another leader it may be the newer one that came to nothing"


def test_where_vectors_are_large_one_says_that_it_is_here_before_it_adds_up() -> None:
    bench = Bench(2, wait_for=1, vector_bytes=1 << 20)
    member, order = bench.members[1], []
    take, send = member.pending.take, member._send

    def taking(number: int, **is_pause: bool) -> Any:
        order.append("adds up")
        return take(number, **is_pause)

    def sending(to: int, header: dict[str, Any], vector: Flat | None) -> None:
        order.append(header["kind"])
        send(to, header, vector)

    member.pending.take, member._send = taking, sending  # type: ignore[method-assign]
    bench.call(1)
    bench.deliver()
    assert order == ["note", "here", "adds up", "give", "got"]


def test_results_that_all_have_are_not_kept() -> None:
    """Where everyone keeps up, only the newest; where one is deaf, all that it misses, until it has died. So on the
    leader, and on those that may lead next."""
    bench = Bench(3, wait_for=1, max_staleness=100)

    def go(rounds: int) -> None:
        for _ in range(rounds):
            bench.call(1)
            bench.deliver()
            bench.now += 0.06
            bench.members[0].passed(bench.now)
            bench.deliver()
            for member in bench.members:
                member.applied = member.log.newest

    def kept(rank: int = 0) -> list[int]:
        log = bench.members[rank].log
        return [number for number in range(1, log.newest + 1) if log.get(number) is not None]

    go(12)
    assert bench.members[0].log.newest == 12
    assert kept() == kept(1) == kept(2) == [11, 12]
    bench.deaf = {2}
    go(10)
    newest = bench.members[0].log.newest
    assert newest == 22
    assert kept() == kept(1) == list(range(12, newest + 1)), "rank 2 has nothing after 12"
    bench.deaf = set()
    bench.deliver()
    assert bench.logs() == [(newest, 0)] * 3
    go(2)
    assert bench.logs() == [(newest + 2, 0)] * 3
    assert len(kept()) <= 6
    bench.deaf, has = {2}, bench.members[2].log.newest
    go(10)
    assert kept()[0] == kept(1)[0] == has
    for member in bench.members[:2]:
        member.have_died({2}, bench.now)
    go(10)
    newest = bench.members[0].log.newest
    assert newest > has + 10
    assert kept() == kept(1) == [newest - 1, newest]


def test_no_more_bytes_of_results_are_kept_than_were_agreed_on() -> None:
    """Where one is deaf, the newest only: it gets a copy of a replica when it hears again."""
    bench = Bench(3, wait_for=1, max_staleness=100, log_bytes=5 * 2 * 4)
    bench.deaf = {2}
    for _ in range(12):
        bench.call(1)
        bench.deliver()
        bench.now += 0.06
        bench.members[0].passed(bench.now)
        bench.deliver()
        for member in bench.members[:2]:
            member.applied = member.log.newest
    for member in bench.members[:2]:
        assert [number for number in range(1, 13) if member.log.get(number) is not None] == list(range(8, 13))


def wrapped(bench: Bench, rank: int, passes: Callable[[int, dict[str, Any], Flat | None], bool]) -> None:
    """Send a message of `rank` only where `passes(to, header, vector)`."""
    send = bench.members[rank]._send
    bench.members[rank]._send = lambda *message: send(*message) if passes(*message) else None


def test_large_results_and_contributions_are_released_once_all_have_the_round() -> None:
    """The leader keeps its contribution until then: if it falls silent, the others form the round anew."""
    bench = Bench(2, wait_for="all", vector_bytes=1 << 20)
    leader, other = bench.members
    lost = {"got"}
    wrapped(bench, 1, lambda to, header, vector: header["kind"] not in lost)
    for rank in range(2):
        bench.call(rank)
    bench.deliver()
    assert bench.logs() == [(1, 0)] * 2
    assert list(leader._giving.snapshots) == [1] and not other._giving.snapshots
    lost.clear()
    other._tell(None, RoundSignal("got", 1).header(), None)
    bench.deliver()
    assert not leader._giving.snapshots
    assert leader.log.whole(1) is not None and other.log.whole(1) is not None, "neither worker has applied it"
    lost.add("give")
    for rank in range(2):
        bench.members[rank].applied = 1
        bench.call(rank)
    bench.deliver()
    for member in bench.members:
        first = member.log.get(1)
        assert member.log.newest == 1 and first is not None and first.sum is None and member.log.whole(1) is None


def test_a_contribution_that_is_alone_in_its_round_is_not_sent_back() -> None:
    bench = Bench(3, wait_for=1, vector_bytes=1 << 20)
    sent: list[tuple[int, bool]] = []

    def noted(to: int, header: dict[str, Any], vector: Flat | None) -> bool:
        if header["kind"] == "round":
            sent.append((to, vector is not None))
        return True

    wrapped(bench, 0, noted)
    bench.call(2)
    own = bench.members[2].pending.entries[0].vector  # type: ignore[attr-defined]
    bench.deliver()
    assert sent == [(1, True), (2, False)]
    formed = bench.members[2].log.get(1)
    assert formed is not None and formed.sum is own and bench.logs() == [(1, 0)] * 3


def test_a_member_without_its_contribution_asks_for_the_sum() -> None:
    bench = Bench(2, wait_for=1, vector_bytes=1 << 20)

    def forgotten(to: int, header: dict[str, Any], vector: Flat | None) -> bool:
        if header.get("is_own"):
            bench.members[1]._giving.snapshots.clear()
        return True

    wrapped(bench, 0, forgotten)
    bench.call(1)
    bench.deliver()
    formed = bench.members[1].log.get(1)
    assert formed is not None and formed.sum is not None and formed.sum.parts[0].tolist() == [1.0, 1.0]
