"""What each worker does in rounds: gives what is pending when it is asked, keeps the results, and knows who leads.

Pure: takes messages and gives messages. `send(to, header, vector)` goes to another member or to this one; every
message carries the term, and one of an older term than this member knows is not acted on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from quorate.core.vectors import Flat
from quorate.rounds.gathering import Given
from quorate.rounds.keeping import Keeping
from quorate.rounds.leader import Leader, Send
from quorate.rounds.log import COPIED, HISTORY, Log, Round, round_from
from quorate.rounds.patience import Patience
from quorate.rounds.pending import Pending, Snapshot
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
        blank: Callable[[], Flat] | None = None,
    ) -> None:
        self.agreed, self.rank = agreed, rank
        self._blank = blank
        self.pending, self.log = Pending(agreed, blank=blank), Log(agreed.log_rounds, agreed.log_bytes)
        self.term, self.leads, self.started = 0, 0, 0
        self.applied = 0
        """By the training thread."""
        self.leader: Leader | None = None
        self.copies_wanted: list[int] = []
        """Ranks that the training thread is to give a copy of its replica."""
        self.copy: tuple[int, dict[str, Any], Flat | None] | None = None
        self.is_wanted = False
        """To lead: it knows more than the one that was about to."""
        self.jumps = 0
        self.heard_at = 0.0
        self._send, self._lock, self._news = send, lock, news
        self._snapshots: dict[int, Snapshot] = {}
        self.keeping = Keeping(self.pending, self.log, self._snapshots, news)
        self._given: dict[int, float] = {}
        """Weights by round, of what this worker gave and did not take back, as far back as goes with a copy."""
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
        """See `Rounds.restore`."""
        number = self.applied = self.started = self.keeping.restore()
        self._note = {"note": "ride", "computing": number}
        if self.leader is not None:
            self.leader = self._new_leader(number)
            self.leader.calls.completed_all(number)
        self.keeping.kept = None
        self._news()

    # -- from other members

    def received(self, source: int, says: dict[str, Any], vector: Flat | None, now: float) -> None:
        """One message."""
        kind, term = says["kind"], says["term"]
        if term > self.term:
            self._follow(term, says["leads"])
        if term < self.term:
            if source != self.rank:  # it has slept: an old leader, or a follower of one
                self._tell(source, {"kind": "term"}, None)
            return
        if source == self.leads:
            self.heard_at = now
        if kind in ("note", "here", "give", "got", "behind", "ping", "state", "there"):
            self._lead(source, says, vector, now)
        elif kind == "start":
            self._start(says["number"], now)
        elif kind == "round":
            self._round(round_from(says, vector))
            if self.agreed.is_large and vector is not None:
                self._tell(source, {"kind": "got", "number": says["number"]}, None)
                self.patience.got(says["number"], now)
        elif kind == "term":
            self._tell(self.leads, {"kind": "state", **self._state()}, None)
        elif kind == "copy for":
            self.copies_wanted.append(says["rank"])
            self._news()
        elif kind == "look":
            self._tell(source, {"kind": "there"}, None)
        elif kind == "stand":
            self.is_wanted = True
        elif kind == "copy":
            self.copy = source, says, vector
            self._news()

    def _lead(self, source: int, says: dict[str, Any], vector: Flat | None, now: float) -> None:
        kind, leader = says["kind"], self.leader
        if kind == "state" and self._states is not None:
            self._states[source] = says
            if len(self._states) == self.agreed.size:
                self._take_office(now)
            return
        if leader is None:
            if self._states is not None and kind == "note":
                self._early.append((source, says))
            if self._states is not None and kind == "ping":
                self._tell(source, {"kind": "pong"}, None)
            return  # this member leads no more: whoever said it says it again to the next leader
        leader.heard(source, says, now)
        if kind == "note":
            leader.noted(source, says, now)
        elif kind == "state":
            leader.noted(source, {**says, **says["did"]}, now)
            leader.bring_up(source, says, now)
        elif kind == "give":
            given = Given(
                says["weight"], says["step"], says["options"], [(s, n) for s, n in says["stalenesses"]], vector
            )
            leader.gave(source, says["number"], given, now)
        elif kind == "here":
            leader.is_here(source, says["number"], now)
        elif kind == "got":
            leader.got(source, says["number"], now)
        elif kind == "behind":
            leader.behind(source, says, now)
        elif kind == "ping":
            self._tell(source, {"kind": "pong"}, None)
        leader.advance(now)

    def _start(self, number: int, now: float) -> None:
        self.started = max(self.started, number)
        self._asked = max(self._asked, number)
        self.patience.asked(number, now)
        if self.agreed.is_large:  # before anything is added up: that takes time as well
            self._tell(self.leads, {"kind": "here", "number": number}, None)
        snapshot = self._snapshots.get(number)
        if number <= self.log.newest:  # formed under another leader: one of the two will come to nothing
            snapshot = Snapshot(number, [], self.pending.step, self.pending.options)
        elif snapshot is None:
            with self._lock:
                snapshot = self.pending.take(number)
            self._snapshots[number] = snapshot
            self._given[number] = sum(entry.weight for entry in snapshot.entries)
            for old in [past for past in self._given if past <= number - HISTORY]:
                del self._given[old]
        about = {
            "kind": "give",
            "number": number,
            "weight": snapshot.weight,
            "step": snapshot.step,
            "options": snapshot.options,
            "stalenesses": snapshot.stalenesses,
        }
        self._tell(self.leads, about, snapshot.vector)

    def _round(self, one: Round) -> None:
        if one.number <= self.log.newest:
            return
        if one.number > self.log.newest + 1:
            self._tell(self.leads, {"kind": "behind"}, None)
            return
        self.log.add(one)
        self.patience.new_round()
        self.started = max(self.started, one.number)
        self.keeping.marked(one.number, one.saves)
        self._put_back(one.number)
        self.log.trim(self.applied)
        self._news()

    def _put_back(self, newest: int) -> None:
        """Take back what was given to rounds that went by without it; forget what they took."""
        for number in [n for n in self._snapshots if n <= newest]:
            if self.log.took(number, self.rank) is False:
                self._give_back(number)
            elif number < newest and not self.keeping.needs(number):
                del self._snapshots[number]

    def _give_back(self, number: int) -> None:
        with self._lock:
            self.pending.give_back(self._snapshots.pop(number))
        self._given.pop(number, None)

    def jump(self, says: dict[str, Any]) -> None:
        """This replica is a copy of another one, as it was after round `says["number"]`."""
        if self.leader is not None:  # it led from what it has just given up: somebody has to ask where all are
            self.leader, self.is_wanted = None, True
        number, newest = says["number"], self.log.newest
        self.log.jump(*(says[what] for what in COPIED))
        self.keeping.jumped(number, says["marks"])
        for given in sorted(self._given):
            took = self.log.took(given, self.rank)
            if took or (given <= number and took is None) or (given > max(number, newest)):
                continue  # it counts, or nobody knows any more, or its round is still to come
            if given in self._snapshots and given > number:
                continue  # the round is formed anew, from this snapshot
            if given in self._snapshots:
                self._give_back(given)
            else:  # an old leader's round took it, and came to nothing
                with self._lock:
                    self.pending.lose(self._given.pop(given))
        for old in [past for past in self._snapshots if past <= number]:
            del self._snapshots[old]
        self.started = max(self._asked, number)  # what this replica had seen beyond may never have been
        self.jumps += 1
        self._tell(self.leads, {"kind": "behind"}, None)
        self._news()

    def about_copy(self) -> dict[str, Any]:
        """What goes with a copy of this replica, as it is after round `applied`."""
        return {"kind": "copy", **self.log.about(self.applied)}

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
        for rank in range(self.agreed.size):
            self._tell(rank, {"kind": "term"}, None)

    def _take_office(self, now: float) -> None:
        states, self._states = self._states or {}, None
        newest = max(states.items(), key=lambda item: (item[1]["log_term"], item[1]["logged"]))
        if newest[1]["logged"] > self.log.newest:
            # Somebody knows more: it leads better. Its term is newer than this one.
            self._tell(newest[0], {"kind": "stand"}, None)
            return
        started = max(state["started"] for state in states.values())
        leader = self.leader = self._new_leader(started)
        leader.are_absent(set(range(self.agreed.size)) - states.keys())
        for rank, state in states.items():
            leader.noted(rank, {**state, **state["did"]}, now)
            leader.bring_up(rank, state, now)
        for source, says in self._early:
            leader.heard(source, says, now)
            leader.noted(source, says, now)
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

    def _tell(self, to: int, says: dict[str, Any], vector: Flat | None) -> None:
        own = {"term": self.term, "leads": self.leads, "logged": self.log.newest, "wants": self.keeping.wanted}
        self._send(to, {"log_term": self.log.term, **says, **own}, vector)
