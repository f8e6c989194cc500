"""What a member has of rounds whose sums the hosts form among themselves: the exchanges it takes part in, sums without
a word from the leader, and words without a sum. Only the two together are a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from functools import partial
from typing import Any

from quorate.core.vectors import Flat, Layout, empty_vector
from quorate.rounds.buffer import Snapshot
from quorate.rounds.codes import Codes
from quorate.rounds.hosts.exchange import KINDS as EXCHANGED
from quorate.rounds.hosts.exchange import Exchange, Plan, Send
from quorate.rounds.log import Round, round_from
from quorate.rounds.terms import PASSED_ON

LayoutOf = Callable[[int, bool], Layout]
"""(number of a round, whether all settle in it)"""
KINDS = ("form", "lend", "result", *EXCHANGED)


def layout_unknown(number: int, settles: bool) -> Layout:
    """Of members that only ever are on one host."""
    raise AssertionError("rounds that span hosts need to know how vectors are laid out")


_PLAN = [one.name for one in fields(Plan)]


class BetweenHosts:
    """That of member `rank`."""

    def __init__(
        self,
        rank: int,
        send: Send,
        blank: Callable[[Layout], Flat] | None,
        layout_of: LayoutOf,
        snapshots: Mapping[int, Snapshot],
    ) -> None:
        self._rank, self._send, self._layout_of, self._given = rank, send, layout_of, snapshots
        self._blank: Callable[[Layout], Flat] = empty_vector if blank is None else blank
        self._exchanges: dict[int, Exchange] = {}
        self._sums: dict[int, tuple[int, Flat]] = {}
        """By round: the attempt it is of, and the sum."""
        self._told: dict[int, tuple[dict[str, Any], float]] = {}
        """By round: what the leader says of it, and since when the sum is missing."""
        self.codes: Codes | None = None
        """Where contributions are written small."""
        self._owed: dict[int, list[int]] = {}
        """By round that is not here yet, who is to have its sum from this worker then."""

    def received(self, source: int, header: dict[str, Any], vector: Flat | None) -> tuple[int, Flat] | None:
        """A message of one of `KINDS`; the attempt that is through with it here, and the sum."""
        number, found = header["number"], None
        given = self._given.get(number)
        if header["kind"] == "lend":
            about = {"kind": "part", "number": number, "settles": header["settles"], "attempt": header["attempt"]}
            own = _own(given, coded=header["coded"])
            self._send(header["head"], {**about, "coded": header["coded"]}, own)
        elif header["kind"] == "result":
            assert vector is not None
            found = header["attempt"], vector
        elif header["kind"] == "form":
            plan = Plan(**{name: header[name] for name in _PLAN})
            own = _own(given, coded=bool(plan.codes)) if self._rank in plan.contributors else None
            found = self._exchange(number).form(plan, own)
        else:
            assert vector is not None
            found = self._exchange(number).received(source, header, vector)
        if found is not None and found[0] > self._sums.get(number, (0,))[0]:
            self._sums[number] = found
        return found

    def _exchange(self, number: int) -> Exchange:
        if number not in self._exchanges:
            layout, decode = partial(self._layout_of, number), partial(self._decoded, number)
            self._exchanges[number] = Exchange(self._rank, self._send, self._blank, layout, decode)
        return self._exchanges[number]

    def _decoded(self, number: int, code: Flat, rank: int, settles: bool) -> Flat:
        assert self.codes is not None, "who gives codes has a codec, and all have the same"
        return self.codes.decoded(code, self._layout_of(number, settles), number, rank, self._blank)

    def told(self, header: dict[str, Any], now: float) -> None:
        """The leader says that the round is formed."""
        self._told[header["number"]] = header, now

    def next(self, newest: int) -> tuple[Round, dict[str, Any]] | None:
        """The round after `newest`, if all of it is here, and what the leader says of it."""
        number = newest + 1
        if number not in self._told or self._attempt(number) != self._told[number][0]["attempt"]:
            return None
        header, _ = self._told[number]
        return round_from(header, self._sums[number][1]), header

    def has(self, one: Round) -> None:
        """A round is here: where it came another way than through this host's head, which this is, that hands it on."""
        exchange = self._exchanges.get(one.number)
        if exchange is not None and one.number not in self._sums and one.sum is not None:
            exchange.hand_on(one.sum)
        for rank in self._owed.pop(one.number, ()):
            self.pass_on(one.number, rank, one)
        self.forget(one.number)

    def pass_on(self, number: int, to: int, one: Round | None) -> None:
        """Send `to` the sum of a round, as soon as it is here; `one` is the round, if it is."""
        if one is None:
            self._owed.setdefault(number, []).append(to)
            return
        about = {"kind": "result", "number": number, "settles": one.settles, "attempt": PASSED_ON}
        self._send(to, about, one.sum)

    def forget(self, newest: int) -> None:
        """The rounds up to `newest` are here."""
        self._exchanges = {number: one for number, one in self._exchanges.items() if number > newest}
        self._sums = {number: one for number, one in self._sums.items() if number > newest}
        self._told = {number: one for number, one in self._told.items() if number > newest}
        self._owed = {number: some for number, some in self._owed.items() if number > newest}

    def clear(self) -> None:
        """Another one leads: what was under way begins anew."""
        self._exchanges, self._sums, self._told, self._owed = {}, {}, {}, {}

    def _missing(self) -> list[int]:
        """Rounds of which the leader has told, and whose sums are not here."""
        return [number for number, (header, _) in self._told.items() if self._attempt(number) != header["attempt"]]

    def _attempt(self, number: int) -> int:
        return self._sums[number][0] if number in self._sums else 0

    def _misses(self, dead: AbstractSet[int]) -> bool:
        """Whether a sum that the leader has told of comes no more: one that it was to come from has died."""
        for number in self._missing():
            exchange = self._exchanges.get(number)
            plan = None if exchange is None else exchange.plan
            if not dead.isdisjoint([self._told[number][0]["head"]] if plan is None else plan.heads):
                return True
        return False

    def asks_at(self, patience: float) -> float:
        """When to ask the leader for a sum that has not come."""
        return min((self._told[number][1] for number in self._missing()), default=math.inf) + patience

    def ask(self, now: float, dead: AbstractSet[int] | None = None) -> None:
        """Ask the leader for what is missing; with `dead`, only if it was to come from one of these."""
        if dead is None or self._misses(dead):
            self._told = {number: (header, now) for number, (header, _) in self._told.items()}
            self._send(None, {"kind": "behind"}, None)


def _own(given: Snapshot | None, *, coded: bool) -> Flat | None:
    if given is None:
        return None
    return given.code if coded else given.vector
