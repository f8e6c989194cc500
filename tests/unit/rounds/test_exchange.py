"""Members on several hosts without a wire: what goes between the hosts, and what becomes of those that fail."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from quorate.codecs import codecs
from quorate.core.vectors import Flat, Layout, Part, Segment
from quorate.rounds.calls import SHARE
from quorate.rounds.coding import Coding
from quorate.rounds.member import Member
from quorate.rounds.messages import Note
from quorate.rounds.terms import Agreed

Sent = tuple[int, int, dict[str, Any], Flat | None]


class Bench:
    """Members on `hosts` (by rank, the lowest rank there), what they have said to each other, and the bytes of vectors
    between hosts. What `holds` is true of is kept back."""

    def __init__(self, hosts: Sequence[int], width: int = 1 << 16, **settings: Any) -> None:
        self.hosts, self.width, self.now = hosts, width, 0.0
        self.under_way = deque[Sent]()
        self.held: list[Sent] = []
        self.holds: Callable[[int, int, dict[str, Any]], bool] = lambda source, to, header: False
        self.out, self.into = Counter[int](), Counter[int]()
        part = Part(width, torch.float32, torch.device("cpu"))
        self.layout = Layout((Segment("w", (width,), torch.float32, 0, 0),), (part,), 0)
        agreed = Agreed(size=len(hosts), vector_bytes=4 * width, tolerates_death=True, **settings)
        self.members = [
            Member(
                agreed,
                rank,
                self._sender(rank),
                threading.Lock(),
                lambda: None,
                host_of=hosts.__getitem__,
                layout_of=lambda number, is_pause: self.layout,
            )
            for rank in range(len(hosts))
        ]

    def _sender(self, source: int) -> Any:
        def send(to: int, header: dict[str, Any], vector: Flat | None) -> None:
            if self.hosts[source] != self.hosts[to] and vector is not None:
                nbytes = sum(x.numel() * x.element_size() for x in vector.parts)
                self.out[self.hosts[source]] += nbytes
                self.into[self.hosts[to]] += nbytes
            self.under_way.append((source, to, header, vector))

        return send

    def deliver(self) -> None:
        """Everything that is under way, and what follows from it."""
        while self.under_way:
            one = self.under_way.popleft()
            source, to, header, vector = one
            if self.holds(source, to, header):
                self.held.append(one)
            else:
                self.members[to].received(source, dict(header), vector, self.now)

    def let_go(self) -> None:
        """What was kept back comes."""
        self.holds = lambda source, to, header: False
        self.under_way.extend(self.held)
        self.held = []
        self.deliver()

    def call(self, *ranks: int) -> None:
        """Each hands in a gradient of its rank + 1, and calls."""
        for rank in ranks:
            member = self.members[rank]
            own = Flat([torch.full((self.width,), rank + 1.0)], self.layout)
            member.pending.add(own, 1.0, member.log.newest, 1, None)
            member.note(Note("call", None, member.started), self.now)
        self.deliver()

    def dies(self, *dead: int) -> None:
        """Everyone learns of it; what they had sent, and had not arrived, is lost."""
        self.held = [one for one in self.held if one[0] not in dead and one[1] not in dead]
        for rank, member in enumerate(self.members):
            if rank not in dead:
                member.have_died(set(dead), self.now)
        self.deliver()

    def sums(self, number: int) -> dict[int, float]:
        """By rank, the sum of a round, which is the same number everywhere in the vector."""
        found: dict[int, float] = {}
        for rank, member in enumerate(self.members):
            one = member.log.get(number)
            if one is not None and one.sum is not None:
                (value,) = one.sum.parts[0].unique().tolist()
                found[rank] = value
        return found


def passes(bench: Bench, seconds: float) -> None:
    """Time goes by for everyone."""
    bench.now += seconds
    for member in bench.members:
        member.passed(bench.now)
    bench.deliver()


TWO_BY_TWO = [0, 0, 2, 2]


@pytest.mark.parametrize(("size", "a_host"), [(4, 2), (7, 3), (64, 8), (512, 16)])
def test_all_get_the_sum_and_no_host_pays_for_all(size: int, a_host: int) -> None:
    bench = Bench([rank - rank % a_host for rank in range(size)], 1 << 13 if size > 64 else 1 << 16, wait_for="all")
    for number in range(1, 4):
        bench.call(*range(size))
        assert bench.sums(number) == dict.fromkeys(range(size), size * (size + 1) / 2)
    hosts = -(-size // a_host)
    most = max(*bench.out.values(), *bench.into.values())
    assert most <= 3 * 2 * 4 * (bench.width * (hosts - 1) / hosts + hosts) <= 3 * 2.5 * 4 * bench.width


def test_what_one_worker_gives_goes_to_all_at_no_greater_cost() -> None:
    bench = Bench([0, 1, 2, 3, 4, 5], wait_for=1)
    bench.call(4)
    assert bench.sums(1) == dict.fromkeys(range(6), 5.0)
    assert max(*bench.out.values(), *bench.into.values()) <= 2 * 4 * bench.width


@pytest.mark.parametrize("kind", ["lend", "part", "form", "piece", "sum", "whole"])
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_who_dies_in_the_exchange_is_left_out_or_in_everywhere(kind: str, victim: int) -> None:
    bench = Bench(TWO_BY_TWO, wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == kind and victim in (source, to)
    bench.call(0, 1, 2, 3)
    bench.dies(victim)
    bench.let_go()
    left = [rank for rank in range(4) if rank != victim]
    found = bench.sums(1)
    assert sorted(set(found) & set(left)) == left
    assert {found[rank] for rank in left} in ({10.0}, {10.0 - (victim + 1)})
    given = bench.members[0].log.get(1)
    assert given is not None and sum(rank + 1 for rank in given.contributors) == found[0]
    for rank in left:
        assert bench.members[rank].pending.weight == 0
    bench.call(*left)
    assert {bench.sums(2)[rank] for rank in left} == {10.0 - (victim + 1)}


def test_who_died_after_its_host_had_its_gradient_is_in() -> None:
    bench = Bench(TWO_BY_TWO, wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "piece"
    bench.call(0, 1, 2, 3)
    bench.dies(3)
    bench.let_go()
    assert {bench.sums(1)[rank] for rank in (0, 1, 2)} == {10.0}


def test_a_host_that_is_silent_in_the_exchange_is_left_out_and_brought_up() -> None:
    bench = Bench([0, 1, 2], wait_for=1)
    bench.call(0, 1, 2)
    bench.call(0, 1, 2)  # by now it is known what an exchange takes
    newest = bench.members[0].log.newest
    bench.holds = lambda source, to, header: to == 2 and header["kind"] not in ("start",)
    bench.call(0, 1)
    assert bench.members[0].log.newest == newest
    for _ in range(4):
        passes(bench, 0.06)
    assert {member.log.newest for member in bench.members[:2]} == {newest + 1}
    assert {bench.sums(newest + 1)[rank] for rank in (0, 1)} == {3.0}
    bench.let_go()
    bench.call(2)
    assert len({member.log.newest for member in bench.members}) == 1
    assert list(bench.members[2].log.history(99)) == list(bench.members[0].log.history(99))


def test_who_has_heard_of_a_sum_that_does_not_come_asks_for_it() -> None:
    bench = Bench(TWO_BY_TWO, wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "result" and to == 3
    bench.call(0, 1, 2, 3)
    assert [member.log.newest for member in bench.members] == [1, 1, 1, 0]
    passes(bench, bench.members[3].patience.seconds + 0.01)
    assert [member.log.newest for member in bench.members] == [1, 1, 1, 1]
    bench.let_go()
    bench.call(0, 1, 2, 3)
    assert bench.sums(2) == dict.fromkeys(range(4), 10.0)


def test_who_has_heard_of_a_sum_that_the_dead_owe_asks_at_once() -> None:
    bench = Bench([0, 1, 2, 2], wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "sum" and (source, to) == (1, 2)
    bench.call(0, 1, 2, 3)
    assert [member.log.newest for member in bench.members] == [1, 1, 0, 0]
    bench.dies(1)
    assert [member.log.newest for member in bench.members] == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["give", "form", "piece", "sum", "round"])
def test_when_the_leader_dies_the_next_one_forms_the_round_anew(kind: str) -> None:
    bench = Bench([0, 1, 2, 2], wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == kind and 0 in (source, to) and to != 1
    bench.call(0, 1, 2, 3)
    bench.dies(0)
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    found = bench.sums(1)
    assert {found[rank] for rank in (1, 2, 3)} in ({9.0}, {10.0})
    took = {tuple(member.log.history(9)[0][2]) for member in bench.members[1:]}
    assert took in ({(1, 2, 3)}, {(0, 1, 2, 3)})
    assert all(member.pending.weight == 0 for member in bench.members[1:])


@pytest.mark.parametrize(("late", "source"), [(1, 0), (3, 2), (4, 5)])
def test_who_comes_late_gets_the_sum_from_its_own_host(late: int, source: int) -> None:
    bench = Bench([0, 0, 2, 2, 4, 4], wait_for=1)
    bench.holds = lambda source, to, header: to == late
    bench.call(next(rank for rank in (0, 2) if rank not in (late, source)))
    for _ in range(3):
        passes(bench, 0.06)
    assert [member.log.newest for member in bench.members] == [0 if rank == late else 1 for rank in range(6)]
    before = dict(bench.out)
    bench.let_go()
    bench.call(late)
    passes(bench, 0.06)  # longer than its window
    assert bench.members[late].log.get(1) is not None and len(bench.sums(1)) == 6
    second = Counter(bench.out) - Counter(before)
    assert max(second.values()) <= 2 * 4 * bench.width, "nothing of the first round, and one exchange"


def test_who_is_late_by_little_is_in_the_next_round() -> None:
    bench = Bench(TWO_BY_TWO, wait_for=1)
    bench.holds = lambda source, to, header: header["kind"] == "sum"
    bench.call(0)
    passes(bench, 1.0)
    bench.let_go()
    assert [member.log.newest for member in bench.members] == [1] * 4
    bench.call(1, 0)
    passes(bench, 0.9 * SHARE)
    assert [member.log.newest for member in bench.members] == [1] * 4
    bench.call(2, 3)
    assert {tuple(member.log.history(9)[-1][2]) for member in bench.members} == {(0, 1, 2, 3)}


def test_who_was_to_pass_a_sum_on_dies() -> None:
    bench = Bench(TWO_BY_TWO, wait_for=1)
    bench.holds = lambda source, to, header: to == 3
    bench.call(0)
    for _ in range(3):
        passes(bench, 0.06)
    bench.let_go()
    bench.holds = lambda source, to, header: header["kind"] == "pass on"
    bench.members[3].note(Note("ride", 0), bench.now)
    bench.deliver()
    bench.dies(2)
    assert len({bench.members[rank].log.newest for rank in (0, 1, 3)}) == 1


def test_a_new_leader_lets_those_that_have_a_round_pass_it_on() -> None:
    """Rank 1 leads, and has it; rank 4 has it as well, and rank 5 beside it not."""
    bench = Bench([0, 1, 2, 2, 4, 4], wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "round" and to in (2, 3, 5)
    bench.call(*range(6))
    assert sorted(bench.sums(1)) == [0, 1, 4]
    bench.dies(0)
    before, bench.holds = dict(bench.out), lambda source, to, header: False
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    assert sorted(bench.sums(1)) == list(range(6))
    second = Counter(bench.out) - Counter(before)
    assert sum(second.values()) == 4 * bench.width, "to rank 2 from another host, to ranks 3 and 5 from their own"


@pytest.mark.parametrize("late", [2, 3])
def test_who_is_there_again_while_a_round_is_formed_gets_it_from_its_own_host(late: int) -> None:
    bench = Bench([0, 0, 2, 2, 4, 4], wait_for=1)
    bench.call(0, 1)
    bench.holds = lambda source, to, header: to == late or header["kind"] == "piece"
    bench.call(0)
    for _ in range(2):
        passes(bench, 0.06)
    bench.holds = lambda source, to, header: header["kind"] == "piece"  # late is there again, the round is under way
    bench.members[late].note(Note("ride", 0), bench.now)
    bench.deliver()
    bench.out.clear()
    bench.let_go()
    assert len(bench.sums(2)) == 6 and len(set(bench.sums(2).values())) == 1
    assert max(bench.out.values()) <= 2 * 4 * bench.width


def test_what_a_whole_host_has_missed_comes_to_it_once() -> None:
    """Also while it is voted on, which needs some of that host."""
    bench = Bench([0, 1, 1, 1], wait_for=1)
    bench.holds = lambda source, to, header: to != 0
    bench.call(0)
    for _ in range(3):
        passes(bench, 0.06)
    assert not bench.sums(1)
    bench.let_go()
    assert len(bench.sums(1)) == 4
    assert sum(bench.out.values()) == 4 * bench.width


def test_an_answer_may_take_a_quarter_of_an_exchange() -> None:
    """Where the newest took two seconds; and no longer."""
    for seconds, contributors in ((0.4, 4), (0.7, 2)):
        bench = Bench(TWO_BY_TWO, wait_for="all")
        bench.call(0, 1, 2, 3)
        bench.holds = lambda source, to, header: header["kind"] == "piece"
        bench.call(0, 1, 2, 3)
        for _ in range(20):
            passes(bench, 0.1)
        bench.let_go()
        assert bench.members[0].log.newest == 2
        bench.holds = lambda source, to, header: source > 1 and header["kind"] in ("give", "here")
        bench.call(0, 1, 2, 3)
        for _ in range(round(seconds / 0.05)):
            passes(bench, 0.05)
        bench.let_go()
        one = bench.members[0].log.get(3)
        assert one is not None and len(one.contributors) == contributors


def test_a_head_has_codes_or_vectors_in_all_attempts_of_a_round() -> None:
    """Of four hosts of two all codes of 8 bits are more than a sum, of three they are less; one host dies meanwhile."""
    hosts = [rank - rank % 2 for rank in range(8)]
    bench = Bench(hosts, wait_for="all")
    part = Part(bench.width, torch.float32, torch.device("cpu"), coded=True)
    bench.layout = Layout((Segment("w", (bench.width,), torch.float32, 0, 0),), (part,), 0)
    for rank, member in enumerate(bench.members):
        coding = Coding(codecs.get("blocks")(bits=8), bench.layout, 0, rank, feeds_back=True)
        member.pending.coding, member.between.codes = coding, coding.codes
    bench.holds = lambda source, to, header: header["kind"] == "piece"
    bench.call(*range(8))
    bench.dies(6, 7)
    bench.let_go()
    assert {round(bench.sums(1)[rank], 4) for rank in range(6)} == {21.0}
    kinds = Counter[str]()
    bench.holds = lambda source, to, header: bool(kinds.update([header["kind"]]))
    bench.call(*range(6))
    assert {round(bench.sums(2)[rank], 4) for rank in range(6)} == {21.0}
    assert kinds["code"] == 12 and not kinds["piece"]


@pytest.mark.parametrize(("seconds", "newest"), [(1.5, 1), (7.0, 2)])
def test_links_that_have_become_slow_are_no_silence(seconds: float, newest: int) -> None:
    """20 MB have taken no time so far; over 100 Mbit/s, which others may use as well, they take two seconds. After as
    much for each of the workers there, the other host forms the round alone."""
    bench = Bench(TWO_BY_TWO, width=5_000_000, wait_for="all")
    bench.call(0, 1, 2, 3)
    bench.holds = lambda source, to, header: source > 1 and header["kind"] in ("piece", "there", "got", "pong")
    bench.call(0, 1, 2, 3)
    for _ in range(10):
        passes(bench, seconds / 10)
    leader = bench.members[0].leader
    assert leader is not None and [member.log.newest for member in bench.members[:2]] == [newest] * 2
    if newest == 1:
        assert leader.gathering is not None and leader.gathering.forming is not None
        assert leader.gathering.forming.attempt == 1
    bench.let_go()
    passes(bench, 0.1)
    assert len({member.log.newest for member in bench.members}) == 1
