"""The one place at a time where rounds are decided. Knows no wire: takes and gives messages.

The leader asks everyone (`start`), and everyone answers (`give`). Who has not answered within `grace` is left out, and
asked for nothing until it speaks again; then it is brought up from the log, or, where that does not reach back, by a
copy of a replica. Where vectors are large, carrying them is not silence: a worker answers at once that it is `here`,
and says when it has `got` a result; while one is on its way to it, it has longer to answer.

On one host, and where vectors are small, a round is a star of three hops: what is pending comes with the answers, the
leader adds up in order of rank and tells the sum (`round`). With P workers, k contributors and d numbers that are
3 (P - 1) small messages (5 where vectors are large), k d numbers to the leader and (P - 1) d from it. Among several
hosts (`forming.spans_hosts`) answers are headers only, and the hosts form the sum among themselves (`exchange`), as the
leader decides, and in another attempt where one that is needed dies or falls silent: at most 2.5 d numbers in and out
of each, for any P. There a round is in force, and told of as such, when a majority has it (`votes`).

Settings may change from one round to the next: any worker asks for a change, and the leader decides. Who asks says
after which round it asks (`request`). The newest such request is answered by the next round that is
formed, whose result carries what is in force from the round after it on; so the change is a part of the log, and comes
with it to a new leader, into a copy of a replica, and into a checkpoint. Of requests made after the same round, the one
that comes first is answered; one older than what is in force comes to nothing. A worker says its request with all that
it says to whoever leads, until it is answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

from quorate.core.vectors import Flat, Layout
from quorate.rounds.calls import Calls
from quorate.rounds.combining import Combined
from quorate.rounds.copies import Entrance
from quorate.rounds.formed import round_of, total_of
from quorate.rounds.gathering import Asking, Carrying, Contribution, OpenRound, given_from
from quorate.rounds.holdings import Holdings, Send
from quorate.rounds.hosts.attempts import Attempts
from quorate.rounds.hosts.votes import Votes
from quorate.rounds.log import Log, Round
from quorate.rounds.terms import Agreed, amended


class Leader:
    """Decides when rounds start, forms them, and sees to it that everyone gets them; `accept` is for its own worker.

    `started` is the newest round that any worker has seen start (one more than the log's newest where it was under way
    when the last leader fell silent).
    """

    def __init__(
        self,
        agreed: Agreed,
        rank: int,
        term: int,
        log: Log,
        send: Send,
        accept: Callable[[Round, int], None],
        hold: Callable[[Round, int, int], None],
        started: int,
        blank: Callable[[Layout], Flat] | None = None,
        host_of: Callable[[int], int] = lambda rank: 0,
    ) -> None:
        self.agreed, self.rank, self.term = agreed, rank, term
        self._log, self._send, self._accept, self._hold, self._blank = log, send, accept, hold, blank
        self._changes = Changes(agreed, log)
        self.calls = Calls(self._changes.agreed, log.newest)
        self._resumes = started > log.newest
        self.gathering: OpenRound | None = None
        self.holdings = Holdings(agreed, rank, log, self.calls, send, host_of)
        self._back = [Carrying(agreed) for _ in agreed.ranks]
        self._asking = Asking(agreed.grace)
        self.attempts = Attempts(agreed, rank, self.calls, self.holdings, send, host_of)
        self._wanted = 0  # the newest request that a round be kept
        self._entrance = Entrance(log)
        self.votes = Votes(log, self.calls, host_of)
        self.is_over = False
        self.calls.come(log.joined, log.newest)
        self.are_absent(rank for rank in agreed.ranks if self.is_outside(rank))

    def proposes(self, held: Round, holders: Collection[int], now: float) -> None:
        """Before anything else, what was proposed by a leader before this one; these hold it already."""
        self._resumes = self.calls.begin() != held.number
        voters = self.votes.voters
        self._propose(held, self.holdings.tell(held, (), None, now, voters=voters, holders=holders))

    # -- what workers say

    def received(self, source: int, header: dict[str, Any], vector: Flat | None, now: float) -> None:
        """One message of `source` to whoever leads."""
        if self.is_outside(source):
            self.heard_outside(source, header, now)
            return
        self.heard(source, header, now)
        kind = header["kind"]
        if kind == "note":
            self.noted(source, header, now)
        elif kind == "state":
            self.noted(source, {**header, **header["did"]}, now)
            self.holdings.bring_up(source, header, now)
        elif kind == "give":
            self.gave(source, header["number"], given_from(header, vector), now)
        elif kind == "here":
            self.is_here(source, header["number"], now)
        elif kind == "got":
            self.holdings.got(source, header["number"], now)
            self.votes.came(source, header["number"])
            self._count_votes()
        elif kind == "behind":
            self.holdings.behind(source, header, now)
        elif kind == "whole":
            self.attempts.whole(self.gathering, source, header["number"], header["attempt"])
        elif kind == "ping":
            self._send(source, {"kind": "pong"}, None)
        self.advance(now)

    def is_outside(self, rank: int) -> bool:
        """Whether `rank` has not joined yet, or has died."""
        return self.calls.workers[rank].activity == "gone"

    def heard(self, rank: int, header: dict[str, Any], now: float) -> None:
        """Anything from `rank`: it is there, and `header["logged"]` is the newest round it has."""
        worker = self.calls.workers[rank]
        worker.heard_at = self.calls.now = now
        self._asking.heard(rank, now)
        self._wanted = max(self._wanted, header.get("wants", 0))
        self._changes.heard(header)
        self.holdings.heard(rank, header, now)
        if not worker.is_present and worker.activity != "away":
            self.calls.is_there(rank)
            self.holdings.bring_up(rank, header, now)

    def heard_outside(self, rank: int, header: dict[str, Any], now: float) -> None:
        """From `rank`, which is outside; what else it may say it says again when it is inside."""
        if header["kind"] == "behind":
            self.holdings.behind(rank, header, now)
        elif header["kind"] == "got":
            self.holdings.got(rank, header["number"], now)
        elif (logged := self._entrance.knocked(rank, header)) is not None:
            self.holdings.bring_up(rank, {**header, "logged": logged}, now)

    def are_absent(self, ranks: Iterable[int]) -> None:
        """They do not answer: nobody waits for them until they speak."""
        for rank in (absent := list(ranks)):
            self.calls.is_there(rank, is_so=False)
        self.holdings.are_absent(absent)

    def have_died(self, ranks: Collection[int], now: float) -> None:
        """They have died: they count for nothing any more. What they have given to the round under way is in it."""
        for rank in ranks:
            self.are_absent([rank])
            self.calls.is_gone(rank)
            self._asking.forget(rank)
            if self.gathering is not None:
                self.gathering.until.pop(rank, None)
        self._entrance.have_died(set(ranks))
        self.holdings.have_died(ranks)
        if self.gathering is not None:
            self._go_on(self.gathering, now)
        self.votes.have_died()
        self._count_votes()

    def noted(self, rank: int, header: dict[str, Any], now: float) -> None:
        """What `rank` does: see `Member.note`."""
        log = self._log
        self.calls.noted(rank, header, log.newest, log.stretch, is_forming=self._is_forming)
        if header["note"] == "away":
            self.are_absent([rank])
        elif header["note"] == "back":
            self.heard(rank, header, now)

    def is_here(self, rank: int, number: int, now: float) -> None:
        """`rank` was asked for round `number`, and gives: its vector is on its way."""
        if self.gathering is not None:
            self.gathering.is_here(rank, number, now + self.agreed.patience + self._back[rank].seconds)

    def gave(self, rank: int, number: int, given: Contribution, now: float) -> None:
        """`rank` gives to round `number`; where that is over, it takes it back when it has the round."""
        gathering = self.gathering
        if gathering is not None and gathering.number == number and gathering.forming is None:
            gathering.given[rank] = given
            if rank in gathering.until:
                self._back[rank].took(now - gathering.since)
            self._go_on(gathering, now)

    def summed(self, number: int, attempt: int, total: Flat, now: float) -> None:
        """The sum of round `number` is here."""
        if self.attempts.is_through(self.gathering, number, attempt, now):
            assert self.gathering is not None
            self._form(self.gathering, total, now)
            self.advance(now)

    # -- deciding

    def advance(self, now: float) -> None:
        """Start what may start, and end what has waited long enough."""
        gathering, self.calls.now = self.gathering, now
        if gathering is not None and gathering.forming is None and now >= gathering.earliest and now >= self.looks_at:
            self._look(gathering, now)
        if gathering is not None and gathering.forming is not None and not gathering.settles:
            self._finds_silent(gathering.forming.needed, now, self.attempts.seconds)
            self._go_on(gathering, now)
        while not (self._is_forming or self.is_over):
            if self._resumes or self.calls.may_start() or self._entrance.calls(self.holdings.told):
                self._resumes = False
                self._begin(now, settles=False)
            elif self.calls.may_settle():
                self._begin(now, settles=True)
            elif not self._finds_silent(self.calls.held_by(), now):
                break

    def _finds_silent(self, needed: Iterable[int], now: float, longer: float = 0.0) -> bool:
        """Ask those that a round waits for whether they are there; whether one is not. They have `longer` to answer."""
        silent, there = self._asking.due(set(needed) - {self.rank}, now)
        self.are_absent(silent)
        for rank in there:
            self._send(rank, {"kind": "look"}, None)
            self._asking.asked(rank, self._silent_at(rank, now) + longer)
        return bool(silent)

    def _begin(self, now: float, *, settles: bool) -> None:
        number = self.calls.begin()
        assert number == self._log.newest + 1
        asked = [r for r, w in enumerate(self.calls.workers) if w.is_present or (settles and w.activity != "gone")]
        inside = self.calls.inside
        spans = self.attempts.span(inside)
        until = {rank: self._silent_at(rank, now) + (self.attempts.slack if spans else 0.0) for rank in asked}
        self.gathering = OpenRound(number, now, settles, until, spans)
        for rank in inside:  # also the absent ones: it wakes them up
            self._send(rank, {"kind": "start", "number": number, "settles": settles, "spans": spans}, None)

    def _silent_at(self, rank: int, now: float) -> float:
        """When `rank`, asked now, has not answered."""
        return now + self.agreed.grace + self.holdings.seconds_there(rank)

    @property
    def _is_forming(self) -> bool:
        """Whether a round is under way that is not in force yet."""
        return self.gathering is not None or self.votes.on is not None

    @property
    def looks_at(self) -> float:
        """When somebody may turn out to be silent."""
        gathering = self.gathering
        if gathering is None:
            return min(self._asking.looks_at, self.calls.opens_at)
        looks_at = gathering.looks_at if gathering.forming is None else self._asking.looks_at
        return math.inf if gathering.settles else looks_at

    def _look(self, gathering: OpenRound, now: float) -> None:
        if now >= self.looks_at + self.agreed.grace and not gathering.is_extended:
            gathering.extend(now + self.agreed.grace)  # this worker stood still: the answers may be here already
            return
        self.are_absent(gathering.silent(now, but=self.rank))
        self._go_on(gathering, now)

    def _go_on(self, gathering: OpenRound, now: float) -> None:
        """Form the round, or let the hosts form it, if nobody more is waited for."""
        if not (gathering.until.keys() <= gathering.given.keys() and self.attempts.are_needed(gathering)):
            return
        gives = any(one.gives for one in gathering.given.values())
        if not (gathering.spans and gives and self.attempts.decide(gathering, now)):
            self._form(gathering, None, now)

    def _form(self, gathering: OpenRound, total: Flat | None, now: float) -> None:
        """The round is there: of those that are in its `forming`, or of all that have given."""
        forming, self.gathering = gathering.forming, None
        self.calls.window.took(now - gathering.since, among_hosts=forming is not None)
        given = self.calls.learners.one_of_each(gathering.given)
        if forming is not None:
            given = {rank: one for rank, one in given.items() if not one.gives or rank in forming.contributors}
        hosts = self.attempts.order(gathering, given)
        about = self.agreed, gathering.number, hosts or [list(given)], given, self._blank
        found = total_of(*about) if forming is None else Combined(total)
        entering = self._entrance.let_in(gathering.number, self.holdings.told, settles=gathering.settles)
        voters = self.votes.voters if self.votes.are_needed else []
        formed = round_of(
            gathering,
            given,
            found,
            term=self.term,
            log=self._log,
            calls=self.calls,
            now=now,
            entering=entering,
            saves=self._wanted if self._wanted > self._log.saves else 0,
            answered=self._changes.answered(),
            voters=self.votes.of_next(entering),
            hosts=hosts,
        )
        acknowledged = self.holdings.tell(formed, given, None if found.vector is None else forming, now, voters=voters)
        (self._propose if voters else self._takes_effect)(formed, acknowledged)

    def _propose(self, one: Round, acknowledged: int) -> None:
        self.votes.begin(one, acknowledged)
        self._hold(one, acknowledged, self.term)

    def _count_votes(self) -> None:
        if (one := self.votes.ended()) is not None:
            self.holdings.in_force(one.number)
            self._takes_effect(one, self.votes.acknowledged)

    def _takes_effect(self, one: Round, acknowledged: int) -> None:
        self.is_over = one.is_last
        self.calls.takes_effect(one.number, one.joined[len(self._log.joined) :], settles=one.settles)
        self._accept(one, acknowledged)
        self.holdings.told[self.rank] = one.number
        self.calls.agreed = self._changes.agreed


class Changes:
    """What a leader knows of them."""

    def __init__(self, agreed: Agreed, log: Log) -> None:
        self._start, self._log = agreed, log
        self._wish: dict[str, Any] | None = None

    @property
    def agreed(self) -> Agreed:
        """In force after the newest round of the log."""
        return amended(self._start, self._log.settings)

    def heard(self, header: dict[str, Any]) -> None:
        """What a worker says, perhaps with a request."""
        wish = header.get("wishes")
        newest = self._log.request if self._wish is None else self._wish["request"]
        if wish is not None and wish["request"] > newest:
            self._wish = wish

    def answered(self) -> dict[str, Any]:
        """What the round that is being formed says of them, as fields of `Round`."""
        wish, self._wish = self._wish, None
        if wish is None or wish["request"] <= self._log.request:
            return {"settings": self._log.settings, "request": self._log.request, "why": None}
        settings = {**self._log.settings, **wish["settings"]}
        return {"settings": settings, "request": wish["request"], "why": wish["why"]}
