"""Workers that keep a replicated board, on a network that is cut and healed, in time that a test lets pass."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from quorate.core.fields import Fields
from quorate.wire.members import GONE, Death, history_in, history_to_bytes
from quorate.wire.replicated.limits import Limits
from quorate.wire.replicated.messages import read
from quorate.wire.replicated.replica import Replica
from quorate.wire.replicated.state import Write


@dataclass
class Member:
    """One worker: its copy, and what it has seen."""

    replica: Replica
    applied: list[Any] = field(default_factory=list)
    results: dict[int, tuple[float, Any]] = field(default_factory=dict)
    """Of its own writes, and when they came."""
    reads: dict[int, float] = field(default_factory=dict)
    is_alive: bool = True
    next_number: int = 0


class Workers:
    """`size` of them; a message takes up to `delay` seconds, or is lost on a way that is cut."""

    def __init__(self, size: int, seed: int = 0, *, silence: float = 5.0, delay: float = 0.02) -> None:
        self.draw, self.limits, self.delay = random.Random(seed), Limits(silence), delay
        self.now, self._size = 0.0, size
        self.cut: set[tuple[int, int]] = set()
        self.leaders: dict[int, set[int]] = {}
        """By term."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.members = [self._member(rank, size) for rank in range(size)]

    def join(self) -> int:
        """One more, which is to join: its rank."""
        rank = len(self.members)
        self.members.append(self._member(rank, self._size, address="there"))
        return rank

    def _member(self, rank: int, size: int, address: str | None = None) -> Member:
        member = Member(
            Replica(
                rank,
                size,
                self.limits,
                lambda to, message: self._send(rank, to, message),
                self.now,
                address=address,
                draw=random.Random(self.draw.random()),
                when_applied=lambda write, result: self._applied(rank, write, result),
                when_read=lambda number: self.members[rank].reads.update({number: self.now}),
            )
        )
        self.look(rank)
        return member

    def _applied(self, rank: int, write: Write, result: Any) -> None:
        member = self.members[rank]
        member.applied.append((write.by, write.number))
        if write.by == rank:
            member.results[write.number] = self.now, result

    # -- what happens

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, event))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def run_until(self, is_so: Callable[[], bool], most: float = 60.0) -> float:
        """Let time pass until it is; how long that took."""
        begin = self.now
        while not is_so():
            assert self.now < begin + most, "it does not come to pass"
            self.run(0.01)
        return self.now - begin

    def _send(self, source: int, to: int, message: Fields) -> None:
        text = json.dumps(message.header())

        def arrive() -> None:
            if self.members[to].is_alive and (source, to) not in self.cut:
                replica = self.members[to].replica
                replica.passed(self.now)
                replica.received(source, read(json.loads(text)))
                replica.flush()
                self._note(to)

        if (source, to) not in self.cut:
            self.at(self.now + self.draw.random() * self.delay, arrive)

    def look(self, rank: int) -> None:
        """From now on it does so now and then."""

        def look() -> None:
            if self.members[rank].is_alive:
                self.members[rank].replica.passed(self.now)
                self.members[rank].replica.flush()
                self._note(rank)
                self._bury(rank)
                self.look(rank)

        self.at(self.now + self.limits.beat / 4 * (0.5 + self.draw.random()), look)

    def _note(self, rank: int) -> None:
        replica = self.members[rank].replica
        if replica.office is not None:
            self.leaders.setdefault(replica.term, set()).add(rank)

    def _bury(self, rank: int) -> None:
        """What is written where somebody is silent, as `report_death` does."""
        member = self.members[rank]
        office = member.replica.office
        silent = {} if office is None or member.replica.stopped else office.silent()
        written = member.replica.state.values.get(GONE)
        new = [Death(dead, "h", why) for dead, why in silent.items()]
        if new:
            old = None if written is None else written.decode("latin-1")
            value = history_to_bytes([*history_in(written), *new]).decode()
            self.write(rank, do="swap", key=GONE, expected=old, value=value)

    # -- what they do

    def write(self, rank: int, **write: Any) -> int:
        member = self.members[rank]
        number = member.next_number
        member.next_number += 1
        member.replica.propose(Write(rank, number, 0, **write))
        return number

    def kill(self, rank: int, *, is_seen: bool = True) -> None:
        """Its process ends; the others' systems say so, if that `is_seen`."""
        self.members[rank].is_alive = False
        for member in self.members if is_seen else ():
            if member.is_alive:
                member.replica.closed[rank] = self.now

    def cut_between(self, some: Iterable[int], others: Iterable[int], *, both: bool = True) -> None:
        """Nothing comes from the one to the others any more, and, if `both`, the other way round."""
        for a in some:
            for b in others:
                self.cut.add((a, b))
                if both:
                    self.cut.add((b, a))

    def heal(self) -> None:
        self.cut.clear()

    @property
    def going(self) -> list[int]:
        """Who lives and has not stopped."""
        return [rank for rank, one in enumerate(self.members) if one.is_alive and one.replica.stopped is None]

    def gone(self, rank: int) -> frozenset[int]:
        """Whom this worker knows to be gone."""
        return self.members[rank].replica.state.members.dead
