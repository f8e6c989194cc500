"""One sequence of decisions for all servers, though those that decide die: messages arrive late, and some never."""

from __future__ import annotations

import random
from collections import deque

import pytest

from quorate.core.contracts import Message
from quorate.servers.order import Decision
from quorate.servers.succession import Holders, NumberedDecision, Succession


class Play:
    """`size` servers that know of each other by messages only; whoever decides makes decisions, and may die."""

    def __init__(self, size: int, seed: int, deaths: int) -> None:
        self.draw, self.size = random.Random(seed), size
        holders = Holders(tuple(range(size)), deaths + 1)
        self.way = {(a, b): deque[Message]() for a in range(size) for b in range(size)}
        self.servers = [
            Succession(rank, holders, lambda message, to, rank=rank: self._send(rank, to, message), is_alone=False)  # type: ignore[misc]
            for rank in range(size)
        ]
        self.known: list[list[NumberedDecision]] = [[] for _ in range(size)]
        self.dead = set[int]()
        self.untold: list[tuple[int, int]] = []
        """Who is to hear of whose death."""
        self.made = 0
        moments = [self.draw.randrange(150)]
        for _ in range(deaths - 1):
            moments.append(moments[-1] + self.draw.randrange(1, 25))
        for moment in range(300):
            if moment in moments:
                self._dies()
            self._do_something(decides=moment < 240)
        while self._do_something(decides=False):
            pass

    def _send(self, source: int, to: int, message: Message) -> None:
        if source not in self.dead and to not in self.dead:
            self.way[source, to].append(message)

    def _dies(self) -> None:
        living = [rank for rank in range(self.size) if rank not in self.dead]
        rank = living[0] if self.draw.random() < 0.8 else self.draw.choice(living)
        self.dead.add(rank)
        for other in range(self.size):
            self.way[other, rank].clear()
            on_the_way = self.way[rank, other]
            while on_the_way and self.draw.random() < 0.6:  # its last messages are lost
                on_the_way.pop()
        self.untold += [(other, rank) for other in living if other != rank]

    def _do_something(self, *, decides: bool) -> bool:
        ready = [key for key, way in self.way.items() if way and key[1] not in self.dead]
        makers = [r for r in range(self.size) if decides and r not in self.dead and self.servers[r].decides]
        kinds = ["message"] * bool(ready) + ["death"] * bool(self.untold) + ["decision"] * bool(makers)
        if not kinds:
            return False
        kind = self.draw.choice(kinds)
        if kind == "message":
            source, to = self.draw.choice(ready)
            self.known[to] += self.servers[to].receive(source, self.way[source, to].popleft().header)
        elif kind == "death":
            other, rank = self.untold.pop(self.draw.randrange(len(self.untold)))
            if other not in self.dead:
                self.servers[other].died([rank])
        else:
            assert len(makers) == 1, "two decide"
            self.made += 1
            one = Decision(version=self.made, dropped=((7, self.made),), readers=((1, self.made),))
            self.known[makers[0]].append(self.servers[makers[0]].announce(one, 1))
        return True


@pytest.mark.parametrize(("size", "deaths"), [(2, 1), (3, 1), (3, 2), (5, 3)])
def test_all_that_live_know_the_same_decisions_in_the_same_order(size: int, deaths: int) -> None:
    lost = 0
    for seed in range(100):
        play = Play(size, seed, deaths)
        living = [rank for rank in range(size) if rank not in play.dead]
        first = play.known[living[0]]
        assert [told.index for told in first] == list(range(1, len(first) + 1))
        for rank in living:
            assert play.known[rank] == first, f"seed {seed}: rank {rank}"
        for rank in play.dead:  # what a server that died has carried out may be known to nobody else
            lost += play.known[rank] != first[: len(play.known[rank])]
        assert sum(server.decides for rank, server in enumerate(play.servers) if rank in living) == 1
        assert len(first) >= 10
    assert lost > 10, "no play in which the last decisions of one that died are lost"


def test_decisions_that_all_know_are_forgotten() -> None:
    sent: list[Message] = []
    server = Succession(1, Holders((0, 1, 2), 2), lambda message, to: sent.append(message), is_alone=False)
    other = Succession(0, Holders((0, 1, 2), 2), lambda message, to: sent.append(message), is_alone=False)
    for number in range(10):
        other.announce(Decision(version=number), 1)
    for message in sent[::2]:
        server.receive(0, message.header)
    server.has_read(7)
    server.receive(2, {"kind": "succeeds", "index": 0, "dead": [0]})
    assert [told["index"] for told in sent[-1].header["told"]] == [8, 9, 10]


def test_what_the_dead_had_on_the_way_does_not_count_when_another_decides() -> None:
    sent: list[Message] = []
    holders = Holders((0, 1, 2), 2)
    first, last = (Succession(r, holders, lambda message, to: sent.append(message), is_alone=False) for r in (0, 2))
    first.announce(Decision(version=1), 1)
    last.receive(1, {"kind": "succeeds", "index": 0, "dead": [0]})
    assert last.receive(0, sent[0].header) == []
