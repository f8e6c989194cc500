"""A round between hosts is in force when a majority has it: nothing that anyone has applied is ever contradicted."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import Any

import pytest

from quorate.core.vectors import empty_vector
from quorate.rounds import forming
from quorate.rounds.copies import Copy
from quorate.rounds.holdings import Announcement
from quorate.rounds.inquiry import knows
from quorate.rounds.leader import is_majority
from quorate.rounds.log import Round
from quorate.rounds.member import Held
from quorate.rounds.messages import Envelope, Lease, Note
from tests.unit.rounds.test_exchange import Bench, passes

THREE = [0, 1, 2]


@pytest.mark.parametrize(
    ("ranks", "of", "is_so"),
    [
        ([0, 1], [0, 1, 2], True),
        ([2], [0, 1, 2], False),
        ([2, 3, 7], [1, 2, 3, 4], False),
        ([1, 3], [1, 2, 3, 4], True),
        ([3, 4], [1, 2, 3, 4], False),
        ([0], [0], True),
        ([], [0], False),
    ],
)
def test_of_two_halves_the_one_with_the_lowest_rank_counts(ranks: list[int], of: list[int], is_so: bool) -> None:
    assert is_majority(ranks, of) is is_so


def test_what_is_held_behind_the_newest_round_is_known_as_well() -> None:
    envelope = Envelope(2, 0, logged=7, log_term=2)
    told = [None, [8, 1, 3], [8, 2, 4], [9, 2, 5], [7, 2, 5]]
    assert [knows(envelope, held)[2] for held in told] == [-1, 3, 4, -1, -1]
    assert knows(replace(envelope, logged=8), None) > knows(envelope, [8, 2, 4])


def test_what_is_held_is_given_up_once_it_is_in_force() -> None:
    bench = Bench(THREE, wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "force" and to == 2
    bench.call(0, 1, 2)
    held = bench.members[2].incoming.held
    assert held.about == [1, 0, 0] and [member.log.newest for member in bench.members] == [1, 1, 0]
    bench.let_go()
    assert held.about is None and bench.members[2].log.newest == 1
    held.take(bench.members[2].log.get(1), 0, 3)  # type: ignore[arg-type]
    held.logged(1)
    assert held.about is None and Held().about is None


def test_nobody_votes_for_what_it_cannot_hold() -> None:
    """Rank 2 misses round 1, and is told to hold round 2."""
    bench = Bench(THREE, wait_for="all")
    bench.holds = lambda source, to, header: to == 2 and header.get("number") == 1
    bench.call(0, 1)
    bench.holds = lambda source, to, header: source == 2
    one = Round(2, 0, None, 0.0, 3, None, 0.0, {}, voters=THREE)
    header = Envelope(0, 0, 1, 0).header(Announcement(one, votes=True, acknowledged=0, after=0).header())
    bench.held.clear()
    bench.members[2].received(0, header, None, bench.now)
    bench.deliver()
    assert [header["kind"] for _, _, header, _ in bench.held] == ["behind"]


def test_a_leader_that_is_cut_off_puts_nothing_in_force() -> None:
    """It forms a round of what it has itself; when it hears the others again, theirs counts, and its gradient is in."""
    bench = Bench(THREE, wait_for=1)
    bench.holds = lambda source, to, header: (source == 0) != (to == 0)
    bench.call(0)
    passes(bench, 0.06)
    assert bench.members[0].incoming.held.about == [1, 0, 0]
    passes(bench, 5.0)
    assert [member.log.newest for member in bench.members] == [0, 0, 0]
    bench.members[1].stand(1, bench.now)
    bench.call(1, 2)
    passes(bench, 20.0)
    assert [member.log.newest for member in bench.members[1:]] == [1, 1]
    bench.let_go()
    passes(bench, 20.0)
    bench.call(1)
    sums = bench.sums(1)
    assert sums == dict.fromkeys(THREE, sums[1]) and set(bench.sums(2)) == set(THREE)
    assert sums[1] + bench.sums(2)[1] >= 1 + 2 + 3 and bench.members[0].pending.entries == []


def test_a_new_leader_proposes_what_one_of_the_others_holds() -> None:
    """The leader and rank 1 hold a round, which is in force with that; the leader says so to nobody, and dies."""
    bench = Bench(THREE, wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "force" or (header["kind"] == "round" and to == 2)
    bench.call(0, 1, 2)
    assert [member.log.newest for member in bench.members] == [1, 0, 0]
    bench.holds = lambda source, to, header: 0 in (source, to)
    bench.held.clear()
    bench.members[2].stand(1, bench.now)
    bench.deliver()
    passes(bench, 20.0)  # rank 1 knows more
    assert bench.members[1].is_wanted
    bench.members[1].stand(2, bench.now)
    bench.deliver()
    passes(bench, 20.0)
    assert bench.sums(1) == dict.fromkeys(THREE, 6.0)
    assert {bench.members[rank].log.term for rank in THREE} == {0}


def test_one_that_hears_no_majority_leads_nobody() -> None:
    bench = Bench([0, 1, 2, 3, 4], wait_for=1)
    bench.holds = lambda source, to, header: (source < 2) != (to < 2)
    bench.members[1].stand(1, bench.now)
    bench.call(1)
    for _ in range(5):
        passes(bench, 10.0)
    assert bench.members[1].leader is None and bench.members[0].log.newest == 0
    bench.let_go()
    passes(bench, 10.0)
    assert bench.members[1].leader is not None and bench.members[4].log.newest == 1


def test_those_that_are_away_hold_what_was_formed_just_then() -> None:
    """They vote on one more round, and on none after that."""
    bench = Bench(THREE, wait_for=1)
    bench.call(0)
    for rank in (1, 2):
        bench.members[rank].note(Note("away"), bench.now)
    bench.deliver()
    for _ in range(3):
        bench.call(0)
    assert bench.members[0].log.newest == 4 and bench.members[0].log.voters == [0]
    assert bench.members[1].incoming.held.about == [2, 0, 0]


def test_a_leader_brings_nobody_up_that_knows_already_what_it_proposes() -> None:
    """Rank 0 has it in force, and rank 1 proposes it anew: it copies no replica that has less."""
    bench = Bench(THREE, wait_for="all")
    bench.holds = lambda source, to, header: header["kind"] == "force" or (header["kind"] == "round" and to == 2)
    bench.call(0, 1, 2)
    bench.held.clear()
    bench.holds = lambda source, to, header: 0 in (source, to) or header["kind"] == "got"
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    passes(bench, 20.0)
    bench.holds = lambda source, to, header: header["kind"] == "got"
    bench.under_way.extend(bench.held)
    bench.held = []
    bench.deliver()
    assert bench.members[1].leader is not None and bench.members[1].log.newest == 0
    assert bench.members[1].copies_wanted == bench.members[2].copies_wanted == []
    bench.let_go()
    assert bench.sums(1) == dict.fromkeys(THREE, 6.0)


class Storm:
    """Members whose messages are late, whose links are cut, and which die; each takes any time over anything."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        size = draw.choice([2, 3, 4, 5])
        a_host = draw.choice([1, 1, 2])
        hosts = [rank - rank % a_host for rank in range(size)]
        if len(set(hosts)) == 1:
            hosts = list(range(size))
        wait_for: Any = draw.choice([1, 1, "majority", "all"])
        self.bench = Bench(hosts, 4, wait_for=wait_for, max_staleness=draw.choice([1, 16]))
        self.members = self.bench.members
        self.links: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.lease = Lease()
        self.is_cut: set[int] = set()
        self.dead: set[int] = set()
        self.states = [("", 0)] * size
        """Of each replica: what it is made of, and its round."""
        self.applied: dict[int, str] = {0: ""}
        """By round: what a replica is made of that has applied it."""
        self.times: Counter[str] = Counter()

    @property
    def living(self) -> list[int]:
        return [rank for rank in range(len(self.members)) if rank not in self.dead]

    def collect(self) -> None:
        """What was said goes on its way, in order on each link."""
        while self.bench.under_way:
            source, to, header, vector = self.bench.under_way.popleft()
            self.links[source, to].append((header, vector))

    def happens(self) -> None:
        """Anything."""
        draw, bench = self.draw, self.bench
        kind = draw.choices(
            ["message", "call", "apply", "time", "stand", "cut", "heal", "death"], [60, 8, 12, 6, 0.7, 0.5, 1, 0.06]
        )[0]
        rank = draw.choice(self.living)
        self.times[kind] += 1
        if kind == "message":
            ready = [(one, link) for one, link in self.links.items() if link and self._passes(*one)]
            if ready:
                (source, to), link = draw.choice(ready)
                header, vector = link.popleft()
                self.receives(source, to, dict(header), vector)
        elif kind == "call":
            member = self.members[rank]
            member.pending.add(self.gradient(rank), 1.0, self.states[rank][1], 1, None)
            member.note(Note("call", None, member.started), bench.now)
        elif kind == "apply":
            self.applies(rank)
        elif kind == "time":
            bench.now += draw.choice([0.01, 0.06, 1.0])
            self.members[rank].passed(bench.now)
        elif kind == "stand" or (self.members[rank].is_wanted and kind == "heal"):
            self.stands(rank)
        elif kind == "cut":
            self.is_cut.add(draw.randrange(len(self.members)))
        elif kind == "heal":
            self.is_cut.clear()
        elif kind == "death" and len(self.dead) < (len(self.members) - 1) // 2:
            self.dies(rank)
        self.collect()

    def gradient(self, rank: int) -> Any:
        own = empty_vector(self.bench.layout)
        own.parts[0].fill_(rank + 1.0)
        return own

    def _passes(self, source: int, to: int) -> bool:
        if self.dead & {source, to}:
            return False
        return source == to or not self.is_cut & {source, to}

    def receives(self, source: int, to: int, header: dict[str, Any], vector: Any) -> None:
        self.members[to].received(source, header, vector, self.bench.now)

    def stands(self, rank: int) -> None:
        member = self.members[rank]
        member.is_wanted = False
        if (term := member.term_to_take(self.lease, self.bench.now)) is not None:
            self.lease = Lease(term, rank)
            member.stand(term, self.bench.now)

    def dies(self, dead: int) -> None:
        self.dead.add(dead)
        for rank in self.living:
            self.members[rank].have_died({dead}, self.bench.now)

    def applies(self, rank: int) -> None:
        """What a training thread does: it takes a copy, the next round, and gives copies."""
        member = self.members[rank]
        if member.copy is not None:
            _, copy = member.copy
            member.copy, number = None, copy.jump.state.number
            assert number >= self.states[rank][1], "what was applied is taken back"
            if number > self.states[rank][1]:
                self.states[rank] = copy.replica["made of"], number
                member.applied = number
                member.jump(copy.jump)
        elif (one := member.log.get(member.applied + 1)) is not None:
            self.states[rank] = made_of(self.states[rank][0], one), one.number
            member.applied = one.number
        of, number = self.states[rank]
        assert self.applied.setdefault(number, of) == of, f"round {number} is not the same on all"
        while member.copies_wanted:
            about = member.about_copy(member.applied), member.leads, member.log.newest
            copy = Copy(*about, {"made of": of}, is_whole=False)
            self.links[rank, member.copies_wanted.pop()].append((copy.header(), None))

    def ends(self) -> None:
        """All is whole again, and everyone comes to the same round."""
        self.is_cut.clear()
        for turn in range(400):
            while any(link and self._passes(*one) for one, link in self.links.items()):
                for (source, to), link in list(self.links.items()):
                    while link and self._passes(source, to):
                        header, vector = link.popleft()
                        self.receives(source, to, dict(header), vector)
                        self.collect()
            self.bench.now += 1.0
            for rank in self.living:
                member = self.members[rank]
                member.passed(self.bench.now)
                if member.is_wanted or member.leads in self.dead:
                    self.stands(rank)
                self.applies(rank)
                if turn in (100, 200) and member.leads == rank:
                    member.note(Note("call", None, member.started), self.bench.now)
                self.collect()
        leads = {self.members[rank].leads for rank in self.living}
        assert len(leads) == 1 and leads.isdisjoint(self.dead)
        newest = {self.members[rank].log.newest for rank in self.living}
        assert {self.states[rank][1] for rank in self.living} == newest and len(newest) == 1


def made_of(before: str, one: Round) -> str:
    """What a replica is made of that was made of `before` and applies a round."""
    total = None if one.sum is None else one.sum.parts[0].tolist()
    return f"{hash((before, one.number, one.term, str(one.contributors), str(total)))}"


@pytest.mark.parametrize("pieces", [False, True], ids=["by the leader", "in pieces"])
@pytest.mark.seeds(12, 400, also=[112, 114])
def test_random_storms(seed: int, pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(forming, "HUB_BYTES", 0)
    storm = Storm(seed)
    for _ in range(2_500):
        storm.happens()
    storm.ends()
