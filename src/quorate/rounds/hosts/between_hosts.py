"""The rounds of a member whose sums the hosts form among themselves: its exchanges, sums and announcements.

A sum and the leader's announcement of it are a round only together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from quorate.core.fields import Header
from quorate.core.vectors import Flat, Layout, empty_vector
from quorate.rounds.buffer import Snapshot
from quorate.rounds.coding import Codes
from quorate.rounds.forming import Lend, Plan
from quorate.rounds.gathering import Patience
from quorate.rounds.holdings import Announcement, PassOn
from quorate.rounds.hosts.exchange import KINDS as EXCHANGED
from quorate.rounds.hosts.exchange import Exchange, Send, Share
from quorate.rounds.log import Round
from quorate.rounds.messages import Signal
from quorate.rounds.terms import PASSED_ON

LayoutOf = Callable[[int, bool], Layout]
"""(number of a round, whether it is a pause)"""
KINDS = ("form", "lend", "result", *EXCHANGED)


def layout_unknown(number: int, is_pause: bool) -> Layout:
    """Raise `AssertionError`: members on one host need no layout."""
    raise AssertionError("rounds that span hosts need to know how vectors are laid out")


class BetweenHosts:
    """The exchanges of member `rank`."""

    def __init__(
        self,
        rank: int,
        send: Send,
        blank: Callable[[Layout], Flat] | None,
        layout_of: LayoutOf,
        snapshots: Mapping[int, Snapshot],
        patience: Patience,
    ) -> None:
        self._rank, self._send, self._layout_of, self._snapshots, self._patience = (
            rank,
            send,
            layout_of,
            snapshots,
            patience,
        )
        self._blank: Callable[[Layout], Flat] = empty_vector if blank is None else blank
        self._exchanges: dict[int, Exchange] = {}
        self._sums: dict[int, tuple[int, Flat]] = {}
        self._announced: dict[int, tuple[Announcement, float]] = {}  # by round; since when its sum is missing
        self.codes: Codes | None = None
        self._owed: dict[int, list[int]] = {}  # by round that is not here yet, the workers to pass its sum on to

    def received(self, source: int, header: Header, vector: Flat | None) -> tuple[int, Flat] | None:
        """Take in a message of one of `KINDS`; return the attempt and the sum, where that is complete."""
        number, total = header["number"], None
        snapshot = self._snapshots.get(number)
        if header["kind"] == "lend":
            lend = Lend.read(header)
            share = Share("part", number, lend.is_pause, lend.attempt, coded=lend.coded)
            self._send(lend.head, share.header(), _own(snapshot, coded=lend.coded))
        elif header["kind"] == "form":
            plan = Plan.read(header)
            own = _own(snapshot, coded=bool(plan.codes)) if self._rank in plan.contributors else None
            total = self._exchange(number).form(plan, own)
        else:
            assert vector is not None
            share = Share.read(header)
            is_total = share.kind == "result"
            total = (share.attempt, vector) if is_total else self._exchange(number).received(source, share, vector)
        if total is not None and total[0] > self._sums.get(number, (0,))[0]:
            self._sums[number] = total
        return total

    def _exchange(self, number: int) -> Exchange:
        if number not in self._exchanges:
            layout, decode = partial(self._layout_of, number), partial(self._decoded, number)
            self._exchanges[number] = Exchange(self._rank, self._send, self._blank, layout, decode)
        return self._exchanges[number]

    def _decoded(self, number: int, code: Flat, rank: int, is_pause: bool) -> Flat:
        assert self.codes is not None, "who gives codes has a codec, and all have the same"
        return self.codes.decoded(code, self._layout_of(number, is_pause), number, rank, self._blank)

    def announced(self, announcement: Announcement, now: float) -> None:
        """Note that the leader announces a round without its sum."""
        self._announced[announcement.round.number] = announcement, now

    def next(self, newest: int) -> Announcement | None:
        number = newest + 1
        announcement, _ = self._announced.get(number, (None, 0.0))
        if announcement is None or self._attempt(number) != announcement.attempt:
            return None
        return replace(announcement, round=replace(announcement.round, sum=self._sums[number][1]))

    def has(self, formed: Round) -> None:
        """Note that a round is here; a head that has it from elsewhere sends the sum to the others on its host."""
        exchange = self._exchanges.get(formed.number)
        if exchange is not None and formed.number not in self._sums and formed.sum is not None:
            exchange.hand_on(formed.sum)
        for rank in self._owed.pop(formed.number, ()):
            self.pass_on(PassOn(rank, formed.number), formed)
        self.forget(formed.number)

    def pass_on(self, message: PassOn, formed: Round | None) -> None:
        """Pass on the sum of a round as soon as it is here; `formed` is the round, if it is."""
        if formed is None:
            self._owed.setdefault(message.number, []).append(message.to)
        else:
            share = Share("result", message.number, formed.is_pause, PASSED_ON)
            self._send(message.to, share.header(), formed.sum)

    def forget(self, newest: int) -> None:
        """Forget the rounds up to `newest`, which are here."""
        for by_number in (self._exchanges, self._sums, self._announced, self._owed):
            for number in [number for number in by_number if number <= newest]:
                del by_number[number]

    def clear(self) -> None:
        """Forget everything, as another worker leads: what was under way begins again."""
        self._exchanges, self._sums, self._announced, self._owed = {}, {}, {}, {}

    def _missing(self) -> list[int]:
        return [
            number
            for number, (announcement, _) in self._announced.items()
            if self._attempt(number) != announcement.attempt
        ]

    def _attempt(self, number: int) -> int:
        return self._sums[number][0] if number in self._sums else 0

    def _misses(self, dead: AbstractSet[int]) -> bool:
        for number in self._missing():
            exchange = self._exchanges.get(number)
            plan = None if exchange is None else exchange.plan
            if not dead.isdisjoint([self._announced[number][0].head] if plan is None else plan.heads):
                return True
        return False

    @property
    def asks_at(self) -> float:
        """The time to ask the leader for a sum that has not come."""
        return (
            min((self._announced[number][1] for number in self._missing()), default=math.inf) + self._patience.seconds
        )

    def ask(self, now: float, dead: AbstractSet[int] | None = None) -> None:
        if dead is None or self._misses(dead):
            self._announced = {number: (announcement, now) for number, (announcement, _) in self._announced.items()}
            self._send(None, Signal("behind").header(), None)


def _own(snapshot: Snapshot | None, *, coded: bool) -> Flat | None:
    if snapshot is None:
        return None
    return snapshot.code if coded else snapshot.vector
