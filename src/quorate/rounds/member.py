"""What each worker does in rounds: gives what is pending when it is asked, keeps the results, and knows who leads.

Pure: takes messages and gives messages. `send(to, header, vector)` goes to another member or to this one; every
message carries the term, and one of an older term than this member knows is not acted on.

A member that is about to lead asks all others which rounds they have, and takes office once enough have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from quorate.core.vectors import Flat, Layout
from quorate.rounds import incoming
from quorate.rounds.buffer import Buffer
from quorate.rounds.forming import are_apart
from quorate.rounds.gathering import Patience
from quorate.rounds.holdings import Send
from quorate.rounds.hosts.between_hosts import KINDS, BetweenHosts, LayoutOf, layout_unknown
from quorate.rounds.hosts.votes import knows
from quorate.rounds.incoming import Incoming
from quorate.rounds.leader import Leader
from quorate.rounds.log import COPIED, Log, Round
from quorate.rounds.pending import Giving, Keeping, PendingGradients
from quorate.rounds.terms import Agreed

_ANSWERS = {"again": "behind", "look": "there"}


class Member:
    """One worker's part. `lock` guards `pending`, which its training thread adds to; `news` tells that thread. `blank`
    gives vectors to form sums in (None: ordinary memory). `started` is the newest round known to have started,
    `log.newest` the newest whose result is here, `applied` the newest that the training thread has applied.
    """

    def __init__(
        self,
        agreed: Agreed,
        rank: int,
        send: Send,
        lock: AbstractContextManager[Any],
        news: Callable[[], None],
        blank: Callable[[Layout], Flat] | None = None,
        pending: Buffer | None = None,
        host_of: Callable[[int], int] = lambda rank: 0,
        layout_of: LayoutOf = layout_unknown,
    ) -> None:
        self.agreed, self.rank, self._blank, self._host_of = agreed, rank, blank, host_of
        self.pending = PendingGradients(agreed, blank=blank) if pending is None else pending
        self.log = Log(agreed.log_rounds, agreed.log_bytes, agreed.vector_bytes if agreed.pieces > 1 else None)
        self.term, self.leads, self.started, self.applied = 0, 0, 0, 0
        self.leader: Leader | None = None
        self.copies_wanted: list[int] = []
        """Ranks that the training thread is to give a copy of its replica."""
        self.entries_wanted: list[int] = []
        """Joining ranks that need a full copy (optimizer, strategy state, data too); not served while it settles."""
        self.copy: tuple[int, dict[str, Any], Flat | None] | None = None
        self.is_wanted = False  # to lead: it knows more than the one that was about to
        self.wish: dict[str, Any] | None = None
        """The newest request of this worker for other settings: see `Changes`."""
        self.dead: set[int] = set()  # the workers that have died
        self.jumps, self._copied_in = 0, -1  # the term in which this replica became a copy: an older one is late then
        self.heard_at = 0.0
        self._send, self._news = send, news
        self._giving = Giving(self.pending, self.log, rank, lock)
        self.keeping = Keeping(self.pending, self.log, self._giving.snapshots, news)
        self._note: dict[str, Any] = {"note": "ride", "computing": 0}
        self._inquiry: Inquiry | None = None
        self._was_started = self._asked = 0  # the newest round that this term's leader has asked for
        self.patience = Patience(agreed)
        self.between = BetweenHosts(rank, self._tell, blank, layout_of, self._giving.snapshots)
        self.incoming = Incoming(agreed, self.log, self.between, self.patience, self._tell, self._accept)
        if rank == 0:
            self.leader = self._new_leader(0)

    # -- from the training thread

    def note(self, note: dict[str, Any], now: float) -> None:
        """What it does: a note "call" (since, computing), "ride", "wait", "away", "back", "settle" or "end"."""
        self._note, self.heard_at = note, now
        self._tell(self.leads, {"kind": "note", **note}, None)

    def restore(self) -> None:
        number = self.applied = self.started = self.keeping.restore()
        self._note = {"note": "ride", "computing": number}
        if self.leader is not None:
            self.leader = self._new_leader(number)
            self.leader.calls.completed_all(number)
        self.keeping.kept = None
        self._news()

    # -- from other members

    def received(self, source: int, header: dict[str, Any], vector: Flat | None, now: float) -> None:
        """One message."""
        kind, term = header["kind"], header["term"]
        if source in self.dead:
            return
        if term > self.term:
            self._follow(term, header["leads"])
        if term < self.term:
            if source != self.rank:  # it has slept: an old leader, or a follower of one
                self._tell(source, {"kind": "term"}, None)
            return
        if source == self.leads:
            self.heard_at = now
        if kind in ("note", "here", "give", "got", "behind", "ping", "state", "there", "whole"):
            self._lead(source, header, vector, now)
        elif kind == "start":
            self._start(header["number"], now, settles=header["settles"], spans=header["spans"])
        elif kind in incoming.KINDS:
            self.incoming.received(header, vector, now)
            self.between.ask(now, self.dead)
        elif kind in KINDS:
            self._exchange(source, header, vector, now)
        elif kind == "term":
            self._tell(self.leads, {"kind": "state", **self._state()}, None)
        elif kind == "copy for":
            (self.entries_wanted if header["is_new"] else self.copies_wanted).append(header["rank"])
            self._news()
        elif kind == "pass on":
            number = header["number"]
            self.between.pass_on(number, header["for"], self.log.get(number) or self.incoming.held.after(number - 1))
        elif kind in _ANSWERS:
            self._tell(source, {"kind": _ANSWERS[kind]}, None)
        elif kind == "stand":
            self.is_wanted = True
        elif kind == "copy" and (header["is_whole"] or self._copied_in != term or header["number"] > self.log.newest):
            self.copy = source, header, vector
            self._news()

    def _lead(self, source: int, header: dict[str, Any], vector: Flat | None, now: float) -> None:
        inquiry = self._inquiry
        if inquiry is None:
            if self.leader is not None:
                self.leader.received(source, header, vector, now)
        elif header["kind"] == "ping":
            self._tell(source, {"kind": "pong"}, None)
        elif source in self._everyone:  # what else is said is said again to the one that leads
            inquiry.heard(source, header)
            self._take_office_if_all_have_answered(now)

    def _start(self, number: int, now: float, *, settles: bool, spans: bool = False) -> None:
        self.started = max(self.started, number)
        self._asked = max(self._asked, number)
        self.patience.asked(number, now, spans=spans)
        if self.agreed.is_large:  # before anything is added up: that takes time as well
            self._tell(self.leads, {"kind": "here", "number": number}, None)
        snapshot = self._giving.give(number, settles=settles)
        about = {"kind": "give", "settles": settles, **snapshot.header}
        self._tell(self.leads, about, None if spans else snapshot.vector)

    def _exchange(self, source: int, header: dict[str, Any], vector: Flat | None, now: float) -> None:
        if header["number"] <= self.log.newest:
            return
        if header["kind"] == "sum" and self.leader is not None:
            self.leader.attempts.came(self.leader.gathering, source, header["number"], header["attempt"], now)
        if (found := self.between.received(source, header, vector)) is not None and self.leader is not None:
            self.leader.summed(header["number"], *found, now)
        self.incoming.take_what_is_there(now)

    def _accept(self, one: Round, acknowledged: int) -> None:
        self.log.add(one)
        self.incoming.logged(one)
        self._note = goes_on(self._note, one.number, one.stretch, is_in=self.rank in one.joined)
        self.patience.new_round()
        self.started = max(self.started, one.number)
        self.keeping.marked(one.number, one.saves)
        self._giving.put_back(one.number, self.keeping.oldest(one.number))
        self.log.trim(self.applied, acknowledged)
        self._news()

    def jump(self, header: dict[str, Any]) -> None:
        """This replica is a copy of another one, as it was after round `header["number"]`."""
        if self.leader is not None:  # it led from what it has just given up: somebody has to ask where all are
            self.leader, self.is_wanted = None, True
        number, newest = header["number"], self.log.newest
        self._note = goes_on(self._note, number, header["stretch"], is_in=False)
        self.log.jump(*(header[what] for what in COPIED))
        self.keeping.jumped(number, header["marks"])
        self._giving.jumped(number, newest)
        self.between.forget(number)
        self.started = max(self._asked, number)  # what this replica had seen beyond may never have been
        self.jumps, self._copied_in = self.jumps + 1, header["term"]
        self._tell(self.leads, {"kind": "behind"}, None)
        self._news()

    def about_copy(self, number: int) -> dict[str, Any]:
        """With a copy of this replica, as it is after that round."""
        return {"kind": "copy", "term": self.term, **self.log.header(number)}

    # -- who leads

    def _follow(self, term: int, leads: int) -> None:
        self.term, self.leads = term, leads
        self.patience.new_leader()
        self.leader, self._inquiry = None, None
        self.between.clear()
        self.incoming.new_leader()
        self._was_started = max(self._was_started, self.started)  # the new leader starts anew what was under way
        self.started = self.log.newest
        self._asked = 0
        self._news()

    def term_to_take(self, held: dict[str, Any], now: float) -> int | None:
        """In which to stand, where the lease is `held`; None: another one has it, or this member is outside."""
        if held["term"] > self.term and held["leads"] not in self.dead:
            self.received(held["leads"], {"kind": "term", "logged": 0, "log_term": 0, **held}, None, now)
            return None
        return None if self.is_outside else max(int(held["term"]), self.term) + 1

    def stand(self, term: int, now: float) -> None:
        """This member leads from now on, in a new term; it first asks everyone where they are."""
        self._follow(term, self.rank)
        self._inquiry = Inquiry(now + self.patience.seconds)
        for rank in self._everyone - self.dead:
            self._tell(rank, {"kind": "term"}, None)

    @property
    def _everyone(self) -> set[int]:
        """All that have ever stepped, as far as this member knows."""
        return {*range(self.agreed.size), *self.log.joined}

    @property
    def is_outside(self) -> bool:
        """Whether this worker has not joined yet."""
        return self.rank not in self._everyone

    def have_died(self, ranks: Collection[int], now: float) -> None:
        """They have died."""
        self.dead.update(ranks)
        self.copies_wanted = [rank for rank in self.copies_wanted if rank not in self.dead]
        self.entries_wanted = [rank for rank in self.entries_wanted if rank not in self.dead]
        if self.leader is not None:
            self.leader.have_died(ranks, now)
            self.leader.advance(now)
        if self._inquiry is not None:
            self._inquiry.have_died(ranks)
            self._take_office_if_all_have_answered(now)
        self.between.ask(now, self.dead)
        self._news()

    def _take_office_if_all_have_answered(self, now: float) -> None:
        if self._inquiry is not None and self._inquiry.states.keys() >= self._everyone - self.dead:
            self._take_office(now)

    def _take_office(self, now: float) -> None:
        inquiry, self._inquiry = self._inquiry, None
        assert inquiry is not None
        newest, started = inquiry.newest()
        if knows(inquiry.states[newest]) > knows({**self._own(), **self._state()}):
            # Somebody knows more: it leads better. Its term is newer than this one.
            self._tell(newest, {"kind": "stand"}, None)
            return
        if self._is_apart and not inquiry.is_enough(self._everyone, self.dead, self.log.voters):
            self._inquiry, inquiry.until = inquiry, now + self.patience.seconds
            return
        self.leader = self._new_leader(started)
        take_office(self.leader, inquiry, self.incoming.held.after(self.log.newest), self.dead, now)

    def _new_leader(self, started: int) -> Leader:
        own = (self.agreed, self.rank, self.term, self.log, self._tell, self._accept, self.incoming.hold)
        return Leader(*own, started, self._blank, self._host_of)

    @property
    def _is_apart(self) -> bool:
        """Whether there are several hosts."""
        return are_apart(self._host_of, self._everyone)

    def _state(self) -> dict[str, Any]:
        return {"started": max(self.started, self._was_started), "did": self._note, "held": self.incoming.held.about}

    def _own(self) -> dict[str, Any]:
        """What goes with every message."""
        known = {"term": self.term, "leads": self.leads, "logged": self.log.newest, "log_term": self.log.term}
        return {**known, "wants": self.keeping.wanted, "wishes": self.wish}

    @property
    def asks_until(self) -> float | None:
        """Until when this member, about to lead, waits for the others' answers."""
        return None if self._inquiry is None else self._inquiry.until

    def passed(self, now: float) -> None:
        """Time has passed."""
        if self._inquiry is not None and now >= self._inquiry.until and self.rank in self._inquiry.states:
            self._take_office(now)
        if now >= self.between.asks_at(self.patience.seconds):
            self.between.ask(now)
        if self.leader is not None:
            self.leader.advance(now)

    def ping(self) -> None:
        """Ask the leader whether it is there."""
        self._tell(self.leads, {"kind": "ping"}, None)

    def _tell(self, to: int | None, header: dict[str, Any], vector: Flat | None) -> None:
        own = self._own()
        self._send(self.leads if to is None else to, {"log_term": own.pop("log_term"), **header, **own}, vector)


def take_office(leader: Leader, inquiry: Inquiry, held: Round | None, dead: Collection[int], now: float) -> None:
    """`leader` leads, of those that have answered, and proposes what is `held`; the `dead` are known."""
    leader.are_absent(set(leader.agreed.ranks) - inquiry.states.keys())
    leader.have_died(dead, now)
    leader.holdings.know(inquiry.states)
    for rank, state in inquiry.states.items():
        leader.noted(rank, {**state, **state["did"]}, now)
        leader.holdings.bring_up(rank, state, now)
    for source, header in [(source, header) for source, header in inquiry.early if source not in dead]:
        leader.heard(source, header, now)
        leader.noted(source, header, now)
    if held is not None:
        leader.proposes(held, inquiry.holders(held.number, held.term), now)
    leader.advance(now)


@dataclass
class Inquiry:
    """One that is under way."""

    until: float
    """Answers are waited for."""
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The answers, by rank."""
    early: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Notes that came meanwhile: (rank, header)."""

    def heard(self, rank: int, header: dict[str, Any]) -> None:
        """`rank` answers, or says what it does."""
        if header["kind"] == "state":
            self.states[rank] = header
        elif header["kind"] == "note":
            self.early.append((rank, header))

    def have_died(self, ranks: Iterable[int]) -> None:
        """What they have answered counts no more."""
        for rank in ranks:
            self.states.pop(rank, None)

    def newest(self) -> tuple[int, int]:
        """Who knows most, and the newest round that any has seen start."""
        rank = max(self.states, key=lambda rank: knows(self.states[rank]))
        return rank, max(one["started"] for one in self.states.values())

    def holders(self, number: int, term: int) -> list[int]:
        """Who holds round `number`, as it was formed in that term."""
        found = ((rank, state["held"]) for rank, state in self.states.items())
        return [rank for rank, held in found if held is not None and held[:2] == [number, term]]

    def is_enough(self, everyone: Collection[int], dead: Collection[int], voters: Collection[int]) -> bool:
        """Whether one of those that have answered has every round that is in force; `voters` are those on the round
        after the newest of these (none: all that are inside)."""
        if self.states.keys() >= set(everyone).difference(dead):
            return True
        known = voters or everyone
        return 2 * len(self.states.keys() & set(known)) > len(known)


def goes_on(note: dict[str, Any], number: int, stretch: int, *, is_in: bool) -> dict[str, Any]:
    """What a worker does, as new leaders hear, from round `number` on: it steps if all had settled in that, or it has
    joined by then (`is_in`); else what its `note` says."""
    settled = note["note"] == "settle" and number == stretch
    return {"note": "ride", "computing": number} if settled or (note["note"] in ("copy", "enter") and is_in) else note
