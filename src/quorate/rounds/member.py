"""What each worker does in rounds: gives what is pending when it is asked, keeps the results, and knows who leads.

Pure: takes messages and gives messages. `send(to, header, vector)` goes to another member or to this one; every
message carries the term, and one of an older term than this member knows is not acted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from quorate.core.vectors import Flat, Layout
from quorate.rounds.buffer import Buffer
from quorate.rounds.gathering import Patience, given_from
from quorate.rounds.leader import Leader, Send
from quorate.rounds.log import COPIED, Log, Round, round_from
from quorate.rounds.pending import Giving, Keeping, PendingGradients
from quorate.rounds.terms import Agreed


class Member:
    """One worker's part. `lock` guards `pending`, which its training thread adds to; `news` tells that thread. `blank`
    gives vectors to form sums in (None: ordinary memory).

    `started` is the newest round known to have started, `log.newest` the newest whose result is here.
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
    ) -> None:
        self.agreed, self.rank = agreed, rank
        self._blank = blank
        self.pending = PendingGradients(agreed, blank=blank) if pending is None else pending
        self.log = Log(agreed.log_rounds, agreed.log_bytes)
        self.term, self.leads, self.started = 0, 0, 0
        self.applied = 0
        """By the training thread."""
        self.leader: Leader | None = None
        self.copies_wanted: list[int] = []
        """Ranks that the training thread is to give a copy of its replica."""
        self.entries_wanted: list[int] = []
        """Joining ranks that need a full copy (optimizer, strategy state, data too); not served while it settles."""
        self.copy: tuple[int, dict[str, Any], Flat | None] | None = None
        self.is_wanted = False
        """To lead: it knows more than the one that was about to."""
        self.wish: dict[str, Any] | None = None
        """The newest request of this worker for other settings: see `Changes`."""
        self.dead: set[int] = set()
        """The workers that have died."""
        self.jumps = 0
        self.heard_at = 0.0
        self._send, self._news = send, news
        self._giving = Giving(self.pending, self.log, rank, lock)
        self.keeping = Keeping(self.pending, self.log, self._giving.snapshots, news)
        self._note: dict[str, Any] = {"note": "ride", "computing": 0}
        self._states: dict[int, dict[str, Any]] | None = None
        self._states_until = 0.0
        self._was_started = 0
        self._asked = 0
        """The newest round that this term's leader has asked for."""
        self.patience = Patience(agreed)
        self._early: list[tuple[int, dict[str, Any]]] = []
        """Notes that came while this member asked where everyone is."""
        if rank == 0:
            self.leader = self._new_leader(0)

    # -- from the training thread

    def note(self, note: dict[str, Any], now: float) -> None:
        """What it does: a note "call" (since, computing), "ride", "wait", "away", "back", "settle" or "end"."""
        self._note = note
        self._tell(self.leads, {"kind": "note", **note}, None)
        self.heard_at = now

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
        if kind in ("note", "here", "give", "got", "behind", "ping", "state", "there"):
            self._lead(source, header, vector, now)
        elif kind == "start":
            self._start(header["number"], now, settles=header["settles"])
        elif kind == "round":
            self._round(round_from(header, vector), header["acknowledged"])
            if self.agreed.is_large and vector is not None:
                self._tell(source, {"kind": "got", "number": header["number"]}, None)
                self.patience.got(header["number"], now)
        elif kind == "term":
            self._tell(self.leads, {"kind": "state", **self._state()}, None)
        elif kind == "copy for":
            (self.entries_wanted if header["is_new"] else self.copies_wanted).append(header["rank"])
            self._news()
        elif kind == "again":
            self._tell(source, {"kind": "behind"}, None)
        elif kind == "look":
            self._tell(source, {"kind": "there"}, None)
        elif kind == "stand":
            self.is_wanted = True
        elif kind == "copy":
            self.copy = source, header, vector
            self._news()

    def _lead(self, source: int, header: dict[str, Any], vector: Flat | None, now: float) -> None:
        kind, leader = header["kind"], self.leader
        if kind == "state" and self._states is not None and source in self._everyone:
            self._states[source] = header
            self._take_office_if_all_have_answered(now)
            return
        if leader is None:
            if self._states is not None and kind == "note" and source in self._everyone:
                self._early.append((source, header))
            if self._states is not None and kind == "ping":
                self._tell(source, {"kind": "pong"}, None)
            return  # this member leads no more: whoever said it says it again to the next leader
        if leader.is_outside(source):
            leader.heard_outside(source, header, now)
            return
        leader.heard(source, header, now)
        if kind == "note":
            leader.noted(source, header, now)
        elif kind == "state":
            leader.noted(source, {**header, **header["did"]}, now)
            leader.bring_up(source, header, now)
        elif kind == "give":
            leader.gave(source, header["number"], given_from(header, vector), now)
        elif kind == "here":
            leader.is_here(source, header["number"], now)
        elif kind == "got":
            leader.got(source, header["number"], now)
        elif kind == "behind":
            leader.behind(source, header, now)
        elif kind == "ping":
            self._tell(source, {"kind": "pong"}, None)
        leader.advance(now)

    def _start(self, number: int, now: float, *, settles: bool) -> None:
        self.started = max(self.started, number)
        self._asked = max(self._asked, number)
        self.patience.asked(number, now)
        if self.agreed.is_large:  # before anything is added up: that takes time as well
            self._tell(self.leads, {"kind": "here", "number": number}, None)
        snapshot = self._giving.give(number, settles=settles)
        self._tell(self.leads, {"kind": "give", "settles": settles, **snapshot.header}, snapshot.vector)

    def _round(self, one: Round, acknowledged: int) -> None:
        if one.number <= self.log.newest:
            return
        if one.number > self.log.newest + 1:
            self._tell(self.leads, {"kind": "behind"}, None)
            return
        self.log.add(one)
        if self._note["note"] in ("copy", "enter") and self.rank in one.joined:
            self._note = {"note": "ride", "computing": one.number}
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
        self.log.jump(*(header[what] for what in COPIED))
        self.keeping.jumped(number, header["marks"])
        self._giving.jumped(number, newest)
        self.started = max(self._asked, number)  # what this replica had seen beyond may never have been
        self.jumps += 1
        self._tell(self.leads, {"kind": "behind"}, None)
        self._news()

    def about_copy(self) -> dict[str, Any]:
        """What goes with a copy of this replica, as it is after round `applied`."""
        return {"kind": "copy", **self.log.header(self.applied)}

    # -- who leads

    def _follow(self, term: int, leads: int) -> None:
        self.term, self.leads = term, leads
        self.patience.new_leader()
        self.leader, self._states = None, None
        self._was_started, self.started = self.started, self.log.newest  # the new leader starts anew what was under way
        self._asked = 0
        self._news()

    def stand(self, term: int, now: float) -> None:
        """This member leads from now on, in a new term; it first asks everyone where they are."""
        self._follow(term, self.rank)
        self._states, self._early = {}, []
        self._states_until = now + self.patience.seconds
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

    def have_died(self, ranks: Iterable[int], now: float) -> None:
        """They have died."""
        self.dead.update(ranks)
        self.copies_wanted = [rank for rank in self.copies_wanted if rank not in self.dead]
        self.entries_wanted = [rank for rank in self.entries_wanted if rank not in self.dead]
        if self.leader is not None:
            self.leader.have_died(ranks, now)
            self.leader.advance(now)
        if self._states is not None:
            for rank in ranks:
                self._states.pop(rank, None)
            self._take_office_if_all_have_answered(now)
        self._news()

    def _take_office_if_all_have_answered(self, now: float) -> None:
        if self._states is not None and self._states.keys() >= self._everyone - self.dead:
            self._take_office(now)

    def _take_office(self, now: float) -> None:
        states, self._states = self._states or {}, None
        newest = max(states.items(), key=lambda item: (item[1]["log_term"], item[1]["logged"]))
        if newest[1]["logged"] > self.log.newest:
            # Somebody knows more: it leads better. Its term is newer than this one.
            self._tell(newest[0], {"kind": "stand"}, None)
            return
        started = max(state["started"] for state in states.values())
        leader = self.leader = self._new_leader(started)
        leader.are_absent(set(self.agreed.ranks) - states.keys())
        leader.have_died(self.dead, now)
        for rank, state in states.items():
            leader.noted(rank, {**state, **state["did"]}, now)
            leader.bring_up(rank, state, now)
        for source, header in [(source, header) for source, header in self._early if source not in self.dead]:
            leader.heard(source, header, now)
            leader.noted(source, header, now)
        leader.advance(now)

    def _new_leader(self, started: int) -> Leader:
        return Leader(self.agreed, self.rank, self.term, self.log, self._tell, self._round, started, self._blank)

    def _state(self) -> dict[str, Any]:
        return {"started": max(self.started, self._was_started), "did": self._note}

    @property
    def asks_until(self) -> float | None:
        """Until when this member, about to lead, waits for the others' answers."""
        return self._states_until if self._states is not None else None

    def passed(self, now: float) -> None:
        """Time has passed."""
        if self._states is not None and now >= self._states_until and self.rank in self._states:
            self._take_office(now)
        if self.leader is not None:
            self.leader.advance(now)

    def ping(self) -> None:
        """Ask the leader whether it is there."""
        self._tell(self.leads, {"kind": "ping"}, None)

    def _tell(self, to: int, header: dict[str, Any], vector: Flat | None) -> None:
        asks = {"wants": self.keeping.wanted, "wishes": self.wish}
        own = {"term": self.term, "leads": self.leads, "logged": self.log.newest, **asks}
        self._send(to, {"log_term": self.log.term, **header, **own}, vector)
