"""The leader decides rounds, at one worker at a time. Knows no wire: takes and gives messages.

The leader asks everyone (`start`), and everyone answers (`give`). A worker that has not answered within `grace` is left
out, and not asked again until it sends a message. Then it gets the missing rounds from the log, or, where that does not
reach back, a copy of a replica. If vectors are large, carrying them is not silence. A worker answers at once that it is
`here`, and says when it has `got` a result; while one is on its way, it has longer to answer.

On one host, and if vectors are small, a round is a star of three hops. Contributions are sent with the answers, and the
leader adds them up in order of rank and sends the sum (`round`). Large ones it adds up together with the workers that
wait (`piecewise_sums`). With P workers, k contributors and d numbers there are 3 (P - 1) small messages (5 where
vectors are large). The leader receives k d numbers and sends (P - 1) d. Where there are many workers
(`Agreed.gives_with_calls`), one that waits sends its contribution with its call, and is not asked. Among several hosts
(`forming.spans_hosts`) answers are headers only, and the hosts form the sum among themselves (`exchange`), as the
leader decides. If a needed worker dies or falls silent, they make another attempt. At most 2.5 d numbers are sent in
and out of each, for any P.
There a round is in force, and announced as such, when a majority has it (`Votes`).

Settings may change from one round to the next. A worker sends a request with every message until it is answered, and
names the round after which it was made. The newest one is answered by the next round that is formed, whose result
carries the settings from the round after it on. So the change is a part of the log, and reaches a new leader, copies
and checkpoints with it. Of requests made after the same round the first counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat
from quorate.rounds.buffer import Contribution
from quorate.rounds.calls import Calls
from quorate.rounds.combining import Combined
from quorate.rounds.forming import are_apart, on_one_host
from quorate.rounds.gathering import Add, Asking, Carrying, OpenRound, round_of, total_of
from quorate.rounds.holdings import Holdings, Send
from quorate.rounds.hosts.attempts import Attempts
from quorate.rounds.log import Log, Round
from quorate.rounds.messages import Envelope, Note, RoundSignal, Signal, State, Whole, Wish
from quorate.rounds.terms import Agreed, amended


def is_majority(ranks: Collection[int], of: Collection[int]) -> bool:
    """Return whether `ranks` are more than half of `of`, or half with the lowest one."""
    voters = set(ranks).intersection(of)
    return 2 * len(voters) > len(of) or (2 * len(voters) == len(of) and min(of) in voters)


class Votes:
    """The votes on the newest round that a leader has formed: between hosts it is in force when a majority has it.

    On one host a leader that falls silent has formed one round too many at most. Between hosts it may only be cut off,
    and would go on by itself. So there the leader proposes each round, everyone *holds* it and says so (`got`), and
    when a majority has, the leader says that the round is in force (`force`). That is one decree after the other, as in
    Paxos (Lamport, 1998): the term in which a member was last told to hold a round is its ballot.

    The voters on a round were named in the one before it (`Round.voters`): all that were inside, and not away. A round
    is in force when more than half of the living voters hold it, or half with the lowest rank among them. A candidate
    needs the answers of all living, or of more than half of the voters, the dead counted. One of these knows of every
    round that is in force; of all held rounds the one with the newest ballot is proposed again. Cost: 2 (P - 1) headers
    and a round trip for each round, and P of them held at once instead of applied.
    """

    def __init__(self, log: Log, calls: Calls, host_of: Callable[[int], int]) -> None:
        self._log, self._calls, self._host_of = log, calls, host_of
        self.on: Round | None = None
        self.acknowledged = 0
        self._have: set[int] = set()
        self._least = 0  # twice as many hold it at least once it is in force

    @property
    def are_needed(self) -> bool:
        """Whether rounds are proposed, and take effect by votes."""
        return are_apart(self._host_of, self._calls.inside)

    @property
    def voters(self) -> list[int]:
        """The voters on the round after the newest that have not died."""
        inside = set(self._calls.inside)
        return [rank for rank in self._log.voters or inside if rank in inside] or sorted(inside)

    def of_next(self, entering: Iterable[int]) -> list[int]:
        """Return the voters on the round after the one that is formed now, with the newcomers `entering` in it."""
        if not self.are_needed:
            return []
        there = [rank for rank in self._calls.inside if self._calls.workers[rank].activity != "away"]
        return sorted({*there, *entering})

    def begin(self, formed: Round, acknowledged: int) -> None:
        """Propose a round."""
        self.on, self.acknowledged, self._have = formed, acknowledged, set()
        self._least = len(self.voters)

    def have_died(self) -> None:
        """Note that workers have died."""
        self._least = len(self.voters)

    def holds(self, rank: int, number: int) -> None:
        if self.on is not None and self.on.number == number:
            self._have.add(rank)

    def ended(self) -> Round | None:
        proposed = self.on
        if proposed is None or 2 * len(self._have) < self._least or not is_majority(self._have, self.voters):
            return None
        self.on = None
        return proposed


AddWith = Callable[[Callable[[], Sequence[int]], Sequence[Flat]], Flat | None]
"""Adds as `gathering.Add`; the first argument returns the workers that may help."""


class Leader:
    """Decides when rounds start, forms them, and sends them to everyone; `accept` is for its own worker. `started` is
    the newest round that any worker has seen start: one beyond the log where it was under way when the last leader fell
    silent."""

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
        add_with: AddWith,
        host_of: Callable[[int], int] = on_one_host,
    ) -> None:
        self.agreed, self.rank, self.term = agreed, rank, term
        self._log, self._send, self._accept, self._hold, self._add_with = log, send, accept, hold, add_with
        self._changes = _Changes(agreed, log)
        self.calls = Calls(self._changes.agreed, log.newest)
        self._resumes = started > log.newest
        self.gathering: OpenRound | None = None
        self.holdings = Holdings(agreed, rank, log, self.calls, send, host_of)
        self._back = [Carrying(agreed) for _ in agreed.ranks]
        self._asking = Asking(agreed.grace)
        self.attempts: Attempts | None = None
        self.votes: Votes | None = None
        """None on one host: several hosts form sums among themselves, and vote on rounds."""
        if self.holdings.are_apart:
            self.attempts = Attempts(agreed, rank, self.calls, self.holdings, send, host_of)
            self.votes = Votes(log, self.calls, host_of)
        self._wanted = 0  # the newest request that a round be kept
        self._entrance = Entrance(log)
        self._early: dict[int, Contribution] = {}
        """By rank, the contribution that came with its newest call."""
        self.is_over = False
        self.calls.come(log.joined, log.newest)
        self.are_absent(rank for rank in agreed.ranks if self.is_outside(rank))

    def proposes(self, held: Round, holders: Collection[int], now: float) -> None:
        """Propose the round of an earlier leader, before anything else; the `holders` hold it already."""
        assert self.votes is not None, "rounds are held between hosts"
        self._resumes = self.calls.begin() != held.number
        voters = self.votes.voters
        self._propose(self.votes, held, self.holdings.tell(held, None, now, voters=voters, holders=holders))

    # -- what workers say

    def received(self, source: int, envelope: Envelope, header: Header, vector: Flat | None, now: float) -> None:
        """Take in a message of `source` to whoever leads."""
        if source not in self.calls.members.alive:
            self._heard_outside(source, envelope, header, now)
            return
        self.heard(source, envelope, now)
        kind = header["kind"]
        if kind == "note":
            if "number" in header:
                self._early[source] = Contribution.read(header, vector=vector)
            self.noted(source, Note.read(header), envelope, now)
        elif kind == "state":
            self.noted(source, State.read(header).did, envelope, now)
            self.holdings.bring_up(source, envelope.logged, envelope.log_term, now)
        elif kind == "give":
            self.gave(source, Contribution.read(header, vector=vector), now)
        elif kind == "here":
            self.is_here(source, RoundSignal.read(header).number, now)
        elif kind == "got":
            number = RoundSignal.read(header).number
            self.holdings.got(source, number, now)
            if self.votes is not None:
                self.votes.holds(source, number)
                self._count_votes(self.votes)
        elif kind == "behind":
            self.holdings.behind(source, envelope, now)
        elif kind == "whole" and self.attempts is not None:
            self.attempts.whole(self.gathering, source, Whole.read(header))
        elif kind == "ping":
            self._send(source, Signal("pong").header(), None)
        self.advance(now)

    def is_outside(self, rank: int) -> bool:
        return rank not in self.calls.members.alive

    def heard(self, rank: int, envelope: Envelope, now: float) -> None:
        """Note that `rank` is there, as it has sent a message."""
        worker = self.calls.workers[rank]
        worker.heard_at = self.calls.now = now
        if rank in self._asking.until:
            self._asking.heard(rank, now)
        self._wanted = max(self._wanted, envelope.wants)
        if envelope.wishes is not None:
            self._changes.heard(envelope.wishes)
        self.holdings.heard(rank, envelope, now)
        if not worker.is_present and worker.activity != "away":
            self.calls.is_there(rank)
            self.holdings.bring_up(rank, envelope.logged, envelope.log_term, now)

    def _heard_outside(self, rank: int, envelope: Envelope, header: Header, now: float) -> None:
        kind = header["kind"]
        if kind == "behind":
            self.holdings.behind(rank, envelope, now)
        elif kind == "got":
            self.holdings.got(rank, RoundSignal.read(header).number, now)
        elif kind == "note":
            logged = self._entrance.knocked(rank, Note.read(header), envelope.logged)
            if logged is not None:
                self.holdings.bring_up(rank, logged, envelope.log_term, now)

    def are_absent(self, ranks: Iterable[int]) -> None:
        """Wait for none of `ranks` until they send a message: they do not answer."""
        for rank in (absent := list(ranks)):
            self.calls.is_there(rank, is_so=False)
        self.holdings.are_absent(absent)

    def have_died(self, ranks: Collection[int], now: float) -> None:
        """Forget workers that have died; their contributions to the round under way are in it."""
        for rank in ranks:
            self.are_absent([rank])
            self.calls.died(rank)
            self._asking.forget(rank)
            if self.gathering is not None:
                self.gathering.until.pop(rank, None)
        self._entrance.have_died(set(ranks))
        self.holdings.have_died(ranks)
        if self.gathering is not None:
            self._go_on(self.gathering, now)
        if self.votes is not None:
            self.votes.have_died()
            self._count_votes(self.votes)

    def noted(self, rank: int, note: Note, envelope: Envelope, now: float) -> None:
        """Take in the activity of `rank`."""
        log = self._log
        self.calls.noted(rank, note, envelope.logged, log.newest, log.era, is_forming=self._is_forming)
        if note.note == "away":
            self.are_absent([rank])
        elif note.note == "back":
            self.heard(rank, envelope, now)

    def is_here(self, rank: int, number: int, now: float) -> None:
        """Note that the vector of `rank` for round `number` is on its way."""
        if self.gathering is not None:
            self.gathering.is_here(rank, number, now + self.agreed.patience + self._back[rank].seconds)

    def gave(self, rank: int, contribution: Contribution, now: float) -> None:
        gathering = self.gathering
        if gathering is not None and gathering.number == contribution.number and gathering.forming is None:
            gathering.contributions[rank] = contribution
            if rank in gathering.until:
                self._back[rank].took(now - gathering.since)
            self._go_on(gathering, now)

    def summed(self, number: int, attempt: int, total: Flat, now: float) -> None:
        """Take in the sum of round `number` that hosts have formed."""
        if self.attempts is not None and self.attempts.is_through(self.gathering, number, attempt, now):
            assert self.gathering is not None
            self._form(self.gathering, total, now)
            self.advance(now)

    # -- deciding

    def advance(self, now: float) -> None:
        """Start a round that may start, and end waits that are over."""
        gathering, self.calls.now = self.gathering, now
        if gathering is not None and gathering.forming is None and now >= gathering.earliest and now >= self.looks_at:
            self._look(gathering, now)
        if gathering is not None and gathering.forming is not None and not gathering.is_pause:
            assert self.attempts is not None, "there is an attempt"
            self._finds_silent(gathering.forming.needed, now, self.attempts.seconds)
            self._go_on(gathering, now)
        while self.gathering is None and (self.votes is None or self.votes.on is None) and not self.is_over:
            callers, hastening = self.calls.callers, self._entrance.hastening
            if (
                self._resumes
                or (callers and self.calls.may_start())
                or (hastening and self._entrance.calls(self.holdings.told))
            ):
                self._resumes = False
                self._begin(now, is_pause=False)
            elif not callers and self.calls.may_pause():
                self._begin(now, is_pause=True)
            elif not (callers or self._asking.until) or not self._finds_silent(self.calls.held_by(), now):
                break

    def _finds_silent(self, needed: Iterable[int], now: float, longer: float = 0.0) -> bool:
        silent, there = self._asking.due(set(needed) - {self.rank}, now)
        if silent or self.holdings.are_apart:
            self.are_absent(silent)
        for rank in there:
            self._send(rank, Signal("look").header(), None)
            self._asking.asked(rank, self._silent_at(rank, now) + longer)
        return bool(silent)

    def _begin(self, now: float, *, is_pause: bool) -> None:
        number = self.calls.begin()
        assert number == self._log.newest + 1
        inside = self.calls.inside
        asked = [rank for rank in inside if is_pause or self.calls.workers[rank].is_present]
        spans = self.attempts is not None and self.attempts.span(inside)
        slack = self.attempts.slack if self.attempts is not None and spans else 0.0
        until = {rank: self._silent_at(rank, now) + slack for rank in asked}
        gathering = self.gathering = OpenRound(number, now, is_pause, until, spans)
        if not is_pause:
            fit = {rank: sent for rank, sent in self._early.items() if sent.number == number and rank in until}
            gathering.contributions.update(fit)
        self._early.clear()
        acknowledged = self.holdings.acknowledged(now) if self.agreed.releases_at_once else 0
        header = Start(number, is_pause, spans, acknowledged).header()
        for rank in inside:  # also the absent ones: it wakes them up
            if rank not in gathering.contributions:
                self._send(rank, header, None)
        if gathering.contributions:
            self._go_on(gathering, now)

    def _silent_at(self, rank: int, now: float) -> float:
        return now + self.agreed.grace + self.holdings.seconds_there(rank)

    @property
    def _is_forming(self) -> bool:
        return self.gathering is not None or (self.votes is not None and self.votes.on is not None)

    @property
    def looks_at(self) -> float:
        """The time when a worker may count as silent."""
        gathering = self.gathering
        if gathering is None:
            return min(self._asking.looks_at, self.calls.opens_at)
        looks_at = gathering.looks_at if gathering.forming is None else self._asking.looks_at
        return math.inf if gathering.is_pause else looks_at

    def _look(self, gathering: OpenRound, now: float) -> None:
        if now >= self.looks_at + self.agreed.grace and not gathering.is_extended:
            gathering.extend(now + self.agreed.grace)  # this worker stood still: the answers may be here already
            return
        self.are_absent(gathering.silent(now, but=self.rank))
        self._go_on(gathering, now)

    def _go_on(self, gathering: OpenRound, now: float) -> None:
        if not gathering.until.keys() <= gathering.contributions.keys():
            return
        if (attempts := self.attempts) is not None:
            if not attempts.are_needed(gathering):
                return
            gives = gathering.spans and any(contribution.gives for contribution in gathering.contributions.values())
            if gives and attempts.decide(gathering, now):
                return
        self._form(gathering, None, now)

    def _form(self, gathering: OpenRound, total: Flat | None, now: float) -> None:
        forming, self.gathering = gathering.forming, None
        self.calls.window.took(now - gathering.since, among_hosts=forming is not None)
        received = self.calls.learners.one_of_each(gathering.contributions)
        if forming is not None:
            received = {rank: sent for rank, sent in received.items() if not sent.gives or rank in forming.contributors}
        hosts = [] if self.attempts is None else self.attempts.order(gathering, received)
        add: Add = partial(self._add_with, partial(self._waiting, gathering.number, () if hosts else received))
        about = self.agreed, gathering.number, hosts or [list(received)], received, add
        result = total_of(*about) if forming is None else Combined(total)
        entering = self._entrance.let_in(gathering.number, self.holdings.told, is_pause=gathering.is_pause)
        votes = self.votes if self.votes is not None and self.votes.are_needed else None
        formed = round_of(
            gathering,
            received,
            result,
            term=self.term,
            log=self._log,
            calls=self.calls,
            now=now,
            entering=entering,
            saves=self._wanted if self._wanted > self._log.saves else 0,
            answered=self._changes.answered(),
            voters=[] if votes is None else votes.of_next(entering),
            hosts=hosts,
        )
        forming = None if result.vector is None else forming
        if votes is not None:
            self._propose(votes, formed, self.holdings.tell(formed, forming, now, voters=votes.voters))
        else:
            self._takes_effect(formed, self.holdings.tell(formed, forming, now))

    def _waiting(self, number: int, answered: Iterable[int]) -> list[int]:
        """Return the workers of `answered` that wait for the round, and are sent its result next."""
        workers = self.calls.workers
        there = [rank for rank in answered if rank != self.rank and self.holdings.told[rank] == number - 1]
        return [rank for rank in there if workers[rank].is_present and workers[rank].computing is None]

    def _propose(self, votes: Votes, formed: Round, acknowledged: int) -> None:
        votes.begin(formed, acknowledged)
        self._hold(formed, acknowledged, self.term)

    def _count_votes(self, votes: Votes) -> None:
        if (elected := votes.ended()) is not None:
            self.holdings.in_force(elected.number)
            self._takes_effect(elected, votes.acknowledged)

    def _takes_effect(self, formed: Round, acknowledged: int) -> None:
        self.is_over = formed.is_last
        self.calls.takes_effect(formed.number, formed.joined[len(self._log.joined) :], is_pause=formed.is_pause)
        self._accept(formed, acknowledged)
        self.holdings.told[self.rank] = formed.number
        self.calls.agreed = self._changes.agreed


@dataclass(frozen=True, slots=True)
class Start(Fields):
    """The message of the leader that a round starts."""

    kind: str = field(init=False, default="start")
    number: int
    is_pause: bool
    spans: bool  # whether hosts form its sum: then contributions are sent without vectors
    acknowledged: int = 0  # the newest round that all are known to have


class _Changes:
    """The changes of settings that workers ask the leader for."""

    def __init__(self, agreed: Agreed, log: Log) -> None:
        self._start, self._log = agreed, log
        self._wish: Wish | None = None

    @property
    def agreed(self) -> Agreed:
        return amended(self._start, self._log.settings)

    def heard(self, wish: Wish) -> None:
        if wish.request > (self._log.request if self._wish is None else self._wish.request):
            self._wish = wish

    def answered(self) -> dict[str, Any]:
        """Return the fields of the round that is being formed which answer a request."""
        wish, self._wish = self._wish, None
        if wish is None or wish.request <= self._log.request:
            return {"settings": self._log.settings, "request": self._log.request, "why": None}
        settings = {**self._log.settings, **wish.settings}
        return {"settings": settings, "request": wish.request, "why": wish.why}


class Entrance:
    """The newcomers outside, some of which are ready."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ready: set[int] = set()
        self.hastening: set[int] = set()
        """The newcomers that ask for a round."""

    def knocked(self, rank: int, note: Note, logged: int) -> int | None:
        """Return the newest round that counts (-1: none) of a newcomer that knocks; None for other notes."""
        if note.note == "enter" and note.era == self._log.era:
            self._ready.add(rank)
            if note.hastens:
                self.hastening.add(rank)
            return logged  # also where it misses nothing: a new leader does not know that
        if note.note in ("enter", "copy"):
            self._ready.discard(rank)
            self.hastening.discard(rank)
            return -1
        return None

    def calls(self, has: Mapping[int, int]) -> bool:
        """Return whether a round has to start so that a newcomer steps; `has` is the newest round of each worker."""
        return any(has[rank] == self._log.newest for rank in self.hastening)

    def let_in(self, number: int, has: Mapping[int, int], *, is_pause: bool) -> tuple[int, ...]:
        """Return the newcomers that step from round `number` on; `has` is the newest round of each worker."""
        if is_pause:
            self._ready.clear()
            self.hastening.clear()
        entering = tuple(rank for rank in sorted(self._ready) if has[rank] == number - 1)
        self._ready.difference_update(entering)
        self.hastening.difference_update(entering)
        return entering

    def have_died(self, ranks: set[int]) -> None:
        """Forget workers that have died."""
        self._ready -= ranks
        self.hastening -= ranks
