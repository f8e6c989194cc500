"""The sum of a round that spans several hosts: formed in pieces, each at another host. Pure: messages in, messages out.

On each host one worker, its head, adds up what the workers of the host give. Then the heads do what a reduce-scatter
and an all-gather do: each sends piece j of its host's sum (`piece`) to the head that owns it, which adds up the pieces
in order of hosts and sends the sum (`sum`) to all other heads; a head that has all of them hands the whole to the
others on its host (`result`). With H hosts and d numbers a host so sends and receives 2 (H - 1) / H d numbers.

Where contributions are codes of few bits, and sums of them would be long, heads send each other the codes (`code`), and
each adds up what they stand for, in the same order: every host gets the codes of all others.

Who takes part is decided by the leader, in one attempt after the other: a `Plan`. Of an attempt that was replaced
nothing is added to a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorate.core.vectors import Flat, Layout, add_into
from quorate.rounds.gathering import sum_of
from quorate.rounds.hosts.pieces import piece_of

Send = Callable[[int | None, dict[str, Any], Flat | None], None]
"""(to, header, vector); None: to the leader."""

KINDS = ("part", "piece", "sum", "code")
"""What comes from other workers than the leader."""


@dataclass(frozen=True)
class Plan:
    """One attempt to form the sum of a round, as the head of a host is told."""

    number: int
    settles: bool
    attempt: int
    heads: list[int]
    """In the order in which hosts are added."""
    giving: list[int]
    """Places, in `heads`, of the hosts that give something."""
    owners: list[int]
    """Places, in `heads`: piece j is formed by the head at `owners[j]`."""
    contributors: list[int]
    """On this host, whose vectors are added; in order."""
    others: list[int]
    """On this host, that get the result."""
    codes: list[list[int]] = field(default_factory=list)
    """Where codes travel: whose, by host, in the order in which they are added. Else empty, and pieces do."""


class Exchange:
    """One round's, as worker `rank` sees it, the head of its host if a plan says so.

    `blank` gives vectors to form sums in, `decode` what the code of a worker stands for, in a round in which all
    settle or not. Each method that a vector may come of returns it with the attempt that it is
    of, once, when it is there.
    """

    def __init__(
        self,
        rank: int,
        send: Send,
        blank: Callable[[Layout], Flat],
        layout: Callable[[bool], Layout],
        decode: Callable[[Flat, int, bool], Flat],
    ) -> None:
        self._rank, self._send, self._blank, self._layout, self._decode = rank, send, blank, layout, decode
        self.plan: Plan | None = None
        self._parts: dict[int, Flat] = {}
        """By rank of this host."""
        self._early: list[tuple[int, dict[str, Any], Flat]] = []
        self._begin()

    def _begin(self) -> None:
        self._pieces: dict[int, Flat] = {}
        """Of the one that this head owns, by place of the host that gave it."""
        self._codes: dict[int, Flat] = {}
        """By rank, of all hosts."""
        self._summed: set[int] = set()
        self._has_given = False
        self._total: Flat | None = None

    # -- what is to be done

    def form(self, plan: Plan, own: Flat | None) -> tuple[int, Flat] | None:
        """This worker is the head of its host in `plan`; `own` is what it gives itself."""
        if self.plan is not None and plan.attempt <= self.plan.attempt:
            return None
        self.plan = plan
        self._begin()
        if len(plan.heads) > 1 and not plan.codes:
            self._total = self._blank(
                self._layout(plan.settles)
            )  # a new one: pieces of the old one may be on their way
        if own is not None:
            self._parts[self._rank] = own
        early, self._early = self._early, []
        found = self._give()
        for source, header, vector in early:
            found = self.received(source, header, vector) or found
        return found

    def received(self, source: int, header: dict[str, Any], vector: Flat) -> tuple[int, Flat] | None:
        """A message of one of `KINDS`."""
        kind, attempt = header["kind"], header["attempt"]
        if kind == "part":
            self._parts[source] = vector
            return self._give()
        if self.plan is None or attempt > self.plan.attempt:
            self._early.append((source, header, vector))
            return None
        if attempt < self.plan.attempt or source not in self.plan.heads:
            return None
        if kind == "code":
            self._codes[header["rank"]] = vector
            return self._add_up_codes()
        place = self.plan.heads.index(source)
        return self._piece(place, vector) if kind == "piece" else self._sum(header["piece"], vector)

    # -- inside

    @property
    def _place(self) -> int:
        assert self.plan is not None
        return self.plan.heads.index(self._rank)

    def _give(self) -> tuple[int, Flat] | None:
        """Add up what this host gives, once all of it is here, and send the pieces to those that own them."""
        plan = self.plan
        if plan is None or self._has_given or not self._parts.keys() >= set(plan.contributors):
            return None
        self._has_given = True
        if plan.contributors not in ([], [self._rank]):
            self._send(None, {"kind": "whole", "number": plan.number, "attempt": plan.attempt}, None)
        if plan.codes:
            return self._give_codes(plan)
        own = sum_of([self._parts[rank] for rank in sorted(plan.contributors)], self._blank)
        if own is None:
            return None
        if len(plan.heads) == 1:
            self._total = own
            return self._is_there()
        found, of = None, len(plan.owners)
        for place in self._after_this_one():
            if place in plan.owners:
                piece = plan.owners.index(place)
                self._send(plan.heads[place], self._about("piece", piece), piece_of(own, piece, of))
        if self._place in plan.owners:
            found = self._piece(self._place, piece_of(own, plan.owners.index(self._place), of))
        return found

    def _give_codes(self, plan: Plan) -> tuple[int, Flat] | None:
        for place in self._after_this_one():
            for rank in sorted(plan.contributors):
                self._send(plan.heads[place], {**self._header("code"), "rank": rank, "coded": True}, self._parts[rank])
        self._codes |= {rank: self._parts[rank] for rank in plan.contributors}
        return self._add_up_codes()

    def _add_up_codes(self) -> tuple[int, Flat] | None:
        """What the codes stand for, once all of them are here."""
        plan = self.plan
        assert plan is not None
        if not self._codes.keys() >= {rank for host in plan.codes for rank in host}:
            return None
        hosts = ([self._decode(self._codes[rank], rank, plan.settles) for rank in host] for host in plan.codes)
        self._total = sum_of([total for own in hosts if (total := sum_of(own, self._blank)) is not None], self._blank)
        self._codes.clear()
        return self._is_there()

    def _piece(self, place: int, vector: Flat) -> tuple[int, Flat] | None:
        """The part of the host at `place` in the piece that this head owns."""
        plan = self.plan
        assert plan is not None and self._total is not None
        self._pieces[place] = vector
        if not self._pieces.keys() >= set(plan.giving):
            return None
        mine = plan.owners.index(self._place)
        there = piece_of(self._total, mine, len(plan.owners))
        first, *rest = [self._pieces[other] for other in plan.giving]
        if rest:
            add_into(first, rest[0], there)
        else:
            there.copy_(first)
        for one in rest[1:]:
            there.add_(one)
        self._pieces.clear()
        for other in self._after_this_one():
            self._send(plan.heads[other], self._about("sum", mine), there)
        return self._has(mine)

    def _sum(self, piece: int, vector: Flat) -> tuple[int, Flat] | None:
        plan = self.plan
        assert plan is not None and self._total is not None
        piece_of(self._total, piece, len(plan.owners)).copy_(vector)
        return self._has(piece)

    def _has(self, piece: int) -> tuple[int, Flat] | None:
        assert self.plan is not None
        self._summed.add(piece)
        return self._is_there() if len(self._summed) == len(self.plan.owners) else None

    def _is_there(self) -> tuple[int, Flat]:
        assert self.plan is not None and self._total is not None
        self.hand_on(self._total)
        return self.plan.attempt, self._total

    def hand_on(self, total: Flat) -> None:
        """Give it to the others on this host."""
        plan = self.plan
        for rank in () if plan is None else plan.others:
            self._send(rank, self._header("result"), total)

    def _after_this_one(self) -> list[int]:
        """The other places, from the next one on: so that not all send to the same head first."""
        assert self.plan is not None
        count = len(self.plan.heads)
        return [(self._place + step) % count for step in range(1, count)]

    def _about(self, kind: str, piece: int) -> dict[str, Any]:
        assert self.plan is not None
        return {**self._header(kind), "piece": piece, "of": len(self.plan.owners)}

    def _header(self, kind: str) -> dict[str, Any]:
        assert self.plan is not None
        plan = self.plan
        return {"kind": kind, "number": plan.number, "settles": plan.settles, "attempt": plan.attempt}
