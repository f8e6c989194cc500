"""The part of each worker in rounds: it contributes when it is asked, keeps the results, and knows the leader.

Pure: takes messages and gives messages. `send(to, header, vector)` goes to another member or to this one; every message
carries the term, and one of an older term than this member knows is not acted on.

A member that is about to lead asks all others which rounds they have, and takes office once enough have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from torch import Tensor

from quorate.core.fields import Header
from quorate.core.members import Members
from quorate.core.vectors import Flat, Layout
from quorate.rounds.buffer import Buffer, Give
from quorate.rounds.copies import Copy, CopyFor
from quorate.rounds.forming import are_apart, on_one_host
from quorate.rounds.gathering import Patience, sum_of
from quorate.rounds.holdings import Announcement, PassOn, Send
from quorate.rounds.hosts.between_hosts import KINDS, BetweenHosts, LayoutOf, layout_unknown
from quorate.rounds.hosts.exchange import Send as SendAlsoToLeader
from quorate.rounds.inquiry import Inquiry, begin_to_lead, knows
from quorate.rounds.leader import AddWith, Leader, Start
from quorate.rounds.log import Jump, Log, Round
from quorate.rounds.messages import Envelope, Lease, Note, RoundSignal, Signal, State, Wish
from quorate.rounds.pending import Giving, Keeping, PendingGradients
from quorate.rounds.terms import Agreed

_ROUNDS = ("round", "hold", "force")
_ANSWERS = {"again": Signal("behind"), "look": Signal("there")}


class Member:
    """The member of one worker. `lock` guards `pending`, which its training thread adds to; `news` tells that thread.
    `blank` makes vectors to form sums in (None: ordinary memory). `started` is the newest round known to have started,
    `log.newest` the newest whose result is here, `applied` the newest that the training thread has applied."""

    def __init__(
        self,
        agreed: Agreed,
        rank: int,
        send: Send,
        lock: AbstractContextManager[Any],
        news: Callable[[], None],
        blank: Callable[[Layout], Flat] | None = None,
        pending: Buffer | None = None,
        host_of: Callable[[int], int] = on_one_host,
        layout_of: LayoutOf = layout_unknown,
        add_with: AddWith | None = None,
    ) -> None:
        self.agreed, self.rank, self._blank, self._host_of = agreed, rank, blank, host_of
        self._add_with = add_with if add_with is not None and agreed.is_large else self._add_alone
        self.pending = PendingGradients(agreed, blank=blank) if pending is None else pending
        self.log = Log(agreed.log_rounds, agreed.log_bytes, agreed.vector_bytes if agreed.pieces > 1 else None)
        self.term, self.leads, self.started, self.applied = 0, 0, 0, 0
        self.leader: Leader | None = None
        self.copies_wanted: list[int] = []  # workers that the training thread has to send a copy of its replica
        self.entries_wanted: list[int] = []
        """Newcomers that need a full copy (optimizer, strategy state, data too); not served while it pauses."""
        self.copy: tuple[int, Copy] | None = None
        self.is_wanted = False  # to lead: it knows more than the one that was about to
        self.wish: Wish | None = None
        self.dead = frozenset[int]()
        """Workers of whose death a message has told this member: those that it counts as dead from that message on, so
        that what they had sent before counts. `Wire.dead` may have more."""
        self.jumps, self._copied_in = 0, -1  # the term in which this replica became a copy: an older one is late then
        self.heard_at = 0.0
        self._send, self._news = send, news
        self._sent = cast("tuple[Header, Envelope | None, Header]", ({}, None, {}))
        """The newest message to another member, its envelope, and both as one header."""
        self._giving = Giving(self.pending, self.log, rank, lock)
        self.keeping = Keeping(self.pending, self.log, self._giving.snapshots, news)
        self._note = Note("ride", 0)
        self._inquiry: Inquiry | None = None
        self._was_started = self._asked = 0  # the newest round that this term's leader has asked for
        self.patience = Patience(agreed)
        self.between: BetweenHosts | None = None
        if are_apart(host_of, agreed.ranks):
            self.between = BetweenHosts(rank, self._tell, blank, layout_of, self._giving.snapshots, self.patience)
        self.incoming = Incoming(agreed, self.log, self.between, self.patience, self._tell, self._accept)
        if rank == 0:
            self.leader = self._new_leader(0)

    # -- from the training thread

    def note(self, note: Note, now: float) -> None:
        self._note, self.heard_at = note, now
        header = {"kind": "note", **note.header()}
        is_next = note.note == "call" and note.computing is None and note.since == self.started == self.log.newest
        if is_next and self.agreed.gives_with_calls and self.between is None:
            early = self._giving.give_early(note.since + 1)
            self._tell(self.leads, {**header, **early.contribution.header(), "is_pause": False}, early.vector)
        else:
            self._tell(self.leads, header, None)

    def restore(self) -> None:
        number = self.applied = self.started = self.keeping.restore()
        self._note = Note("ride", number)
        if self.leader is not None:
            self.leader = self._new_leader(number)
            self.leader.calls.completed_all(number)
        self.keeping.kept = None
        self._news()

    # -- from other members

    def received(
        self, source: int, header: Header, vector: Flat | None, now: float, tensors: Sequence[Tensor] = ()
    ) -> None:
        """Take in a message, with a vector, or with the `tensors` of a copy."""
        kind, envelope = header["kind"], Envelope.read(header)
        if source in self.dead:
            return
        if envelope.term > self.term:
            self._follow(envelope.term, envelope.leads)
        if envelope.term < self.term:
            if source != self.rank:  # it has slept: an old leader, or a follower of one
                self._tell(source, Signal("term").header(), None)
            return
        if source == self.leads:
            self.heard_at = now
        if kind in ("note", "here", "give", "got", "behind", "ping", "state", "there", "whole"):
            self._lead(source, envelope, header, vector, now)
        elif kind == "start":
            self._start(Start.read(header), now)
        elif kind in _ROUNDS:
            if header.get("is_own"):
                snapshot = self._giving.snapshots.get(header["number"])
                vector = None if snapshot is None else snapshot.vector
                if vector is None:
                    self._tell(None, Signal("behind").header(), None)
                    return
            self.incoming.received(header, envelope.term, vector, now)
            if self.between is not None:
                self.between.ask(now, self.dead)
        elif kind in KINDS and self.between is not None:
            self._exchange(self.between, source, header, vector, now)
        elif kind == "term":
            self._tell(self.leads, self._state().header(), None)
        elif kind == "copy for":
            request = CopyFor.read(header)
            (self.entries_wanted if request.is_new else self.copies_wanted).append(request.rank)
            self._news()
        elif kind == "pass on" and self.between is not None:
            message = PassOn.read(header)
            formed = self.log.whole(message.number) or self.incoming.held.after(message.number - 1)
            self.between.pass_on(message, formed)
        elif kind in _ANSWERS:
            self._tell(source, _ANSWERS[kind].header(), None)
        elif kind == "stand":
            self.is_wanted = True
        elif kind == "copy":
            copy = Copy.read(header, tensors)
            if copy.is_whole or self._copied_in != envelope.term or copy.jump.state.number > self.log.newest:
                self.copy = source, copy
                self._news()

    def _lead(self, source: int, envelope: Envelope, header: Header, vector: Flat | None, now: float) -> None:
        inquiry = self._inquiry
        if inquiry is None:
            if self.leader is not None:
                self.leader.received(source, envelope, header, vector, now)
            if self.leader is not None and header["kind"] == "got" and self.agreed.releases_at_once:
                self._all_have(self.leader.holdings.acknowledged(now))
        elif header["kind"] == "ping":
            self._tell(source, Signal("pong").header(), None)
        elif source in self.members.everyone:  # what else is said is said again to the one that leads
            inquiry.heard(source, envelope, header)
            self._take_office_if_all_have_answered(now)

    def _start(self, start: Start, now: float) -> None:
        number = start.number
        self.started = max(self.started, number)
        self._asked = max(self._asked, number)
        self.patience.asked(number, now, spans=start.spans)
        if self.agreed.is_large:  # before anything is added up: that takes time as well
            self._tell(self.leads, RoundSignal("here", number).header(), None)
        if self.agreed.releases_at_once:
            self._all_have(start.acknowledged)  # so that the sum may take the memory of the one before
        snapshot = self._giving.give(number, is_pause=start.is_pause)
        give = Give(start.is_pause, snapshot.contribution)
        self._tell(self.leads, give.header(), None if start.spans else snapshot.vector)

    def _exchange(self, between: BetweenHosts, source: int, header: Header, vector: Flat | None, now: float) -> None:
        number = header["number"]
        if number <= self.log.newest:
            return
        if header["kind"] == "sum" and self.leader is not None and self.leader.attempts is not None:
            self.leader.attempts.has_piece(self.leader.gathering, source, number, header["attempt"], now)
        if (total := between.received(source, header, vector)) is not None and self.leader is not None:
            self.leader.summed(number, *total, now)
        self.incoming.take_formed(between, now, self.term)

    def _accept(self, formed: Round, acknowledged: int) -> None:
        number = formed.number
        self.log.add(formed)
        if self.between is not None:
            self.incoming.logged(self.between, formed)
        self._note = _goes_on(self._note, number, formed.era, is_in=self.rank in formed.joined)
        self.patience.new_round()
        self.started = max(self.started, number)
        self.keeping.marked(number, formed.saves)
        self._giving.put_back(number, self.keeping.oldest(number))
        self._all_have(acknowledged)
        self._news()

    def _all_have(self, acknowledged: int) -> None:
        """Release what no worker needs any more, as all have the rounds up to `acknowledged`."""
        self.log.trim(self.applied, acknowledged)
        if not self.agreed.releases_at_once:
            return
        self.log.release(self.applied, acknowledged)
        # Where this member leads and falls silent, the others may form a round again that only this one has.
        stands = self.log.newest if self.leader is None else acknowledged
        self._giving.forget(stands, self.keeping.oldest(stands))

    def jump(self, jump: Jump) -> None:
        """Note that this replica has become a copy of another one."""
        if self.leader is not None:  # it led from what it has just given up: somebody has to ask where all are
            self.leader, self.is_wanted = None, True
        number, newest = jump.state.number, self.log.newest
        self._note = _goes_on(self._note, number, jump.state.era, is_in=False)
        self.log.jump(jump.state)
        self.keeping.jumped(number, jump.state.marks)
        self._giving.jumped(number, newest)
        if self.between is not None:
            self.between.forget(number)
        self.started = max(self._asked, number)  # what this replica had seen beyond may never have been
        self.jumps, self._copied_in = self.jumps + 1, jump.term
        self._tell(self.leads, Signal("behind").header(), None)
        self._news()

    def about_copy(self, number: int) -> Jump:
        """Return what goes with a copy of this replica after round `number`."""
        return Jump(self.log.state(number), self.term)

    # -- who leads

    def _follow(self, term: int, leads: int) -> None:
        self.term, self.leads = term, leads
        self.patience.new_leader()
        self.leader, self._inquiry = None, None
        if self.between is not None:
            self.between.clear()
        self.incoming.new_leader()
        self._was_started = max(self._was_started, self.started)  # the new leader starts again what was under way
        self.started = self.log.newest
        self._asked = 0
        self._news()

    def term_to_take(self, lease: Lease, now: float) -> int | None:
        """Return the term to stand in; None where another worker has the `lease`, or this member is outside."""
        if lease.term > self.term and lease.leads not in self.dead:
            header = Envelope(lease.term, lease.leads, 0, 0).header(Signal("term").header())
            self.received(lease.leads, header, None, now)
            return None
        return None if self.is_outside else max(lease.term, self.term) + 1

    def stand(self, term: int, now: float) -> None:
        """Lead from now on, in a new term; first ask everyone for their rounds."""
        self._follow(term, self.rank)
        self._inquiry = Inquiry(now + self.patience.seconds)
        for rank in self.members.alive:
            self._tell(rank, Signal("term").header(), None)

    @property
    def members(self) -> Members:
        """The workers of the rounds up to the newest in the log, which has agreed on newcomers."""
        return Members(self.agreed.size, frozenset(self.log.joined), self.dead)

    @property
    def is_outside(self) -> bool:
        return self.rank not in self.members.everyone

    def have_died(self, ranks: Collection[int], now: float) -> None:
        """Note that `ranks` have died."""
        self.dead = self.dead.union(ranks)
        self.copies_wanted = [rank for rank in self.copies_wanted if rank not in self.dead]
        self.entries_wanted = [rank for rank in self.entries_wanted if rank not in self.dead]
        if self.leader is not None:
            self.leader.have_died(ranks, now)
            self.leader.advance(now)
        if self._inquiry is not None:
            self._inquiry.have_died(ranks)
            self._take_office_if_all_have_answered(now)
        if self.between is not None:
            self.between.ask(now, self.dead)
        self._news()

    def _take_office_if_all_have_answered(self, now: float) -> None:
        if self._inquiry is not None and self._inquiry.states.keys() >= set(self.members.alive):
            self._take_office(now)

    def _take_office(self, now: float) -> None:
        inquiry, self._inquiry = self._inquiry, None
        assert inquiry is not None
        newest, started = inquiry.newest()
        own = Envelope(self.term, self.leads, self.log.newest, self.log.term)
        if knows(*inquiry.knowledge(newest)) > knows(own, self.incoming.held.about):
            # Somebody knows more: it leads better. Its term is newer than this one.
            self._tell(newest, Signal("stand").header(), None)
            return
        if are_apart(self._host_of, self.members.everyone) and not inquiry.is_enough(self.members, self.log.voters):
            self._inquiry, inquiry.until = inquiry, now + self.patience.seconds
            return
        self.leader = self._new_leader(started)
        begin_to_lead(self.leader, inquiry, self.incoming.held.after(self.log.newest), self.dead, now)

    def _new_leader(self, started: int) -> Leader:
        own = (self.agreed, self.rank, self.term, self.log, self._tell, self._accept, self.incoming.hold)
        return Leader(*own, started, self._add_with, self._host_of)

    def _add_alone(self, waiting: object, vectors: Sequence[Flat]) -> Flat | None:
        return sum_of(vectors, self._blank)

    def _state(self) -> State:
        return State(max(self.started, self._was_started), self._note, self.incoming.held.about)

    @property
    def asks_until(self) -> float | None:
        """The time until which this member, about to lead, waits for answers."""
        return None if self._inquiry is None else self._inquiry.until

    def passed(self, now: float) -> None:
        """Do what is due at time `now`."""
        if self._inquiry is not None and now >= self._inquiry.until and self.rank in self._inquiry.states:
            self._take_office(now)
        if self.between is not None and now >= self.between.asks_at:
            self.between.ask(now)
        if self.leader is not None:
            self.leader.advance(now)

    def ping(self) -> None:
        """Ask the leader whether it is there."""
        self._tell(self.leads, Signal("ping").header(), None)

    def _tell(self, to: int | None, message: Header, vector: Flat | None) -> None:
        log, wants = self.log, self.keeping.wanted
        envelope = Envelope(self.term, self.leads, log.newest, log.term, wants, self.wish)
        if message is not self._sent[0] or envelope != self._sent[1]:  # to many workers it is the same header
            self._sent = message, envelope, envelope.header(message)
        self._send(self.leads if to is None else to, self._sent[2], vector)


def _goes_on(note: Note, number: int, era: int, *, is_in: bool) -> Note:
    """Return the activity from round `number` on: a worker steps after a pause, or once it has joined (`is_in`)."""
    is_pause = note.note == "pause" and number == era
    return Note("ride", number) if is_pause or (note.note in ("copy", "enter") and is_in) else note


class Held:
    """The round that a member holds, which may be in force."""

    def __init__(self) -> None:
        self.round: Round | None = None
        self.acknowledged = 0
        self.ballot = -1

    def take(self, formed: Round, acknowledged: int, ballot: int) -> None:
        self.round, self.acknowledged, self.ballot = formed, acknowledged, ballot

    def logged(self, number: int) -> None:
        """Note that the rounds up to `number` are in force."""
        if self.round is not None and self.round.number <= number:
            self.round, self.ballot = None, -1

    def after(self, newest: int) -> Round | None:
        return self.round if self.round is not None and self.round.number == newest + 1 else None

    @property
    def about(self) -> list[int] | None:
        """The round's number, the term it was formed in, and the ballot; None where nothing is held."""
        return None if self.round is None else [self.round.number, self.round.term, self.ballot]


class Incoming:
    """The rounds that come to a member; `accept` is called with each in force, and the newest that all have."""

    def __init__(
        self,
        agreed: Agreed,
        log: Log,
        between: BetweenHosts | None,
        patience: Patience,
        send: SendAlsoToLeader,
        accept: Callable[[Round, int], None],
    ) -> None:
        self._agreed, self._log, self._between, self._patience = agreed, log, between, patience
        self._send, self._accept = send, accept
        self.held = Held()
        self._in_force = 0  # the newest round that this term's leader has said to be in force

    def new_leader(self) -> None:
        """Forget what the previous leader has said; a held round stays."""
        self._in_force = 0

    def received(self, header: Header, term: int, vector: Flat | None, now: float) -> None:
        """Take in a message of one of `_ROUNDS`."""
        if header["kind"] != "round":
            signal = RoundSignal.read(header)
            (self._hold_anew if signal.kind == "hold" else self._is_in_force)(signal.number, term, now)
        elif (announcement := Announcement.read(header, vector)).attempt and self._between is not None:
            self._between.announced(announcement, now)
        else:
            is_here = self._take(announcement, term)
            if is_here if announcement.votes else (self._agreed.is_large and vector is not None):
                self._has(announcement.round.number, now)
        if self._between is not None:
            self.take_formed(self._between, now, term)

    def take_formed(self, between: BetweenHosts, now: float, term: int) -> None:
        """Take in the rounds whose sums the hosts have formed."""
        while (announcement := between.next(self._log.newest)) is not None:
            between.has(announcement.round)
            if self._take(announcement, term):
                self._has(announcement.round.number, now)

    def hold(self, formed: Round, acknowledged: int, term: int) -> None:
        """Hold the leader's own round, which may be in force from now on."""
        assert self._between is not None, "rounds are held between hosts"
        self.held.take(formed, acknowledged, term)
        self._between.has(formed)
        self._send(None, RoundSignal("got", formed.number).header(), None)

    def logged(self, between: BetweenHosts, formed: Round) -> None:
        """Note that a round is logged."""
        self.held.logged(formed.number)
        between.has(formed)

    def _has(self, number: int, now: float) -> None:
        self._send(None, RoundSignal("got", number).header(), None)
        self._patience.got(number, now)

    def _take(self, announcement: Announcement, term: int) -> bool:
        formed = announcement.round
        if formed.number <= self._log.newest:
            return True
        if formed.number > self._log.newest + 1 or announcement.after != self._log.term:
            self._send(None, Signal("behind").header(), None)
            return False
        if announcement.votes and formed.number > self._in_force:
            self.held.take(formed, announcement.acknowledged, term)
        else:
            self._accept(formed, announcement.acknowledged)
        return True

    def _hold_anew(self, number: int, term: int, now: float) -> None:
        held = self.held
        if held.round is not None and held.round.number == number:
            held.take(held.round, held.acknowledged, term)
            self._has(number, now)
        else:
            self._send(None, Signal("behind").header(), None)

    def _is_in_force(self, number: int, term: int, now: float) -> None:
        self._in_force = max(self._in_force, number)
        held = self.held
        if held.round is not None and (held.round.number, held.ballot) == (number, term):
            self._accept(held.round, held.acknowledged)
