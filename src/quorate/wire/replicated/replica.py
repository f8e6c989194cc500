"""One worker's copy of a replicated board, on which writes get an order that is the same on all workers.

Pure: messages in, messages out, no clock and no connection. Raft (Ongaro and Ousterhout, 2014), with three differences.
The voters are part of the written state (`BoardState.voters`), and a write that changes them needs a majority before
and after it. Of two equal halves the one with the lowest rank decides. No worker votes against a leader that it hears.

Cost of a write with P workers: 2 (P - 1) messages from the leader and as many answers, one round trip. Of a read: two
messages, none for the leader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

from quorate.core.errors import ranks_in_words
from quorate.core.fields import Fields
from quorate.wire.replicated import messages
from quorate.wire.replicated.board_copy import BoardCopy, Send
from quorate.wire.replicated.limits import Limits
from quorate.wire.replicated.office import Office
from quorate.wire.replicated.state import BoardState, Write, is_majority


class Replica(BoardCopy):
    """The replica of one worker: `applied` writes are in `state`. It calls `when_applied(write, result)` for each one,
    in order, and `when_read(number)` once `state` answers `read(number)`.

    `address` is the address of a newcomer. `stopped` is set when this worker cannot go on: it is cut off, or was taken
    for dead.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        limits: Limits,
        send: Send,
        now: float,
        *,
        values: Mapping[str, bytes] = {},
        address: str | None = None,
        draw: random.Random | None = None,
        when_applied: Callable[[Write, Any], None] = lambda write, result: None,
        when_read: Callable[[int], None] = lambda number: None,
    ) -> None:
        super().__init__(rank, size, limits, send, now, values, when_applied, when_read)
        self.leads: int | None = 0 if address is None else None
        self._address = address
        self.lost: tuple[int, ...] = ()
        """The workers whose end is the reason of `stopped`."""
        self._draw = random.Random(rank) if draw is None else draw
        self._voted: int | None = 0
        self._heard = self.contact = now
        """Times of the last message of the leader, and of its last contact with a majority."""
        self._stands_at = self._next_stand()
        self._votes: dict[str, set[int]] = {}
        self._asked_at = now if address is None else now - limits.beat
        self.office = Office(self, now, {}) if rank == 0 else None

    # -- own requests

    def propose(self, write: Write) -> None:
        """Have `write` applied, once; it is sent again until it is."""
        self.proposed[write.number] = (write, self.now)
        self._pass_on(write)

    def read(self, number: int) -> None:
        """Request the newest state: `when_read(number)` is called once it is here."""
        self.reads[number] = self.now
        self._ask_to_read(number)

    def _pass_on(self, write: Write) -> None:
        if self.office is not None:
            self.office.propose(write)
        elif self.leads is not None:
            self.tell(self.leads, messages.Proposal(write))

    def _ask_to_read(self, number: int) -> None:
        if self.office is not None:
            self.office.read(self.rank, number, self.now)
        elif self.leads is not None:
            self.tell(self.leads, messages.ReadRequest(number))

    # -- time

    def passed(self, now: float) -> None:
        """Advance to `now`. To be called at least once per beat; longer gaps do not count as silence."""
        gap, self.now = now - self.now, now
        if self.stopped is not None:
            return
        if gap > 2 * self.limits.beat:
            self._forgive(gap - self.limits.beat)
        if self.office is not None:
            self.office.passed()
            self.contact = max(self.contact, self.office.contact)
            if not self.office.is_heard:  # a worker that is heard may lead
                self._follow(self.term, None)
                self._stands_at = self._next_stand()
        elif self.rank in self.state.voters and self._misses_the_leader():
            self._poll()
        elif self._address is not None and self._is_forgotten():
            self._knock()
        for number, (write, since) in list(self.proposed.items()):
            if now - since >= self.limits.beat:
                self.proposed[number] = (write, now)
                self._pass_on(write)
        for number, since in list(self.reads.items()):
            if now - since >= self.limits.beat and number not in self._readable:
                self.reads[number] = now
                self._ask_to_read(number)
        reachable = self.state.voters - {peer for peer, since in self.closed.items() if now - since >= self.limits.beat}
        if self.rank in reachable and not is_majority(reachable, self.state.voters):
            self.lost = tuple(sorted(self.state.voters - reachable))
            ended = ranks_in_words(self.lost)
            self.stopped = f"{ended} ended, and rank {self.rank} cannot go on without a majority of the workers"
        elif self.rank in reachable and now - self.contact >= self.limits.silence:
            self.stopped = (
                f"rank {self.rank} has not heard from the majority of the workers for {self.limits.silence:g} s, and "
                "they may go on without it"
            )

    @property
    def looks_after(self) -> float:
        """Seconds after which `passed` has work, if no message arrives."""
        if self.closed:
            return self.limits.back_within / 4
        if self.office is not None:
            return self.limits.beat / 2
        return self.limits.beat * (1.0 if self.now - self._heard < 1.2 * self.limits.beat else 0.2)

    def flush(self) -> None:
        """Send new entries, after all present messages are handled."""
        if self.office is not None:
            self.office.flush()

    def _is_forgotten(self) -> bool:
        """Whether this newcomer does not receive the writes."""
        is_outside = self.rank not in self.state.voters and not self.state.has_left(self.rank)
        silence = self.now - max(self._heard, self._asked_at)
        return is_outside and (self.leads is None or silence >= self.limits.stand_after) and silence >= self.limits.beat

    def _knock(self) -> None:
        self._asked_at = self.now
        for peer in sorted(self.state.voters):
            self.tell(peer, messages.Hello(self._address))

    def _forgive(self, seconds: float) -> None:
        self._heard += seconds
        self.contact += seconds
        self._stands_at += seconds
        self.closed = {peer: since + seconds for peer, since in self.closed.items()}
        if self.office is not None:
            self.office.forgive(seconds)

    def _next_stand(self) -> float:
        return self.now + self.limits.stand_after + self._draw.random() * self.limits.spread

    def _hears_the_leader(self) -> bool:
        if self.office is not None:
            return self.office.is_heard
        if self.leads is None or self.is_closed(self.leads):
            return False
        return self.now - self._heard < self.limits.stand_after

    def _misses_the_leader(self) -> bool:
        if self.is_closed(self.leads) and self._stands_at > self.now + self.limits.spread:
            self._stands_at = self.now + self._draw.random() * self.limits.spread
        return self.now >= self._stands_at

    # -- elections

    def _poll(self) -> None:
        """Ask whether others would vote for this worker, before it begins a term."""
        self._stands_at = self.now + (0.2 + 0.3 * self._draw.random()) * self.limits.stand_after
        self._votes.setdefault("poll", set()).add(self.rank)
        self._call("poll", self.term + 1)

    def _stand(self) -> None:
        self.term, self._voted, self.leads, self.office = self.term + 1, self.rank, None, None
        self._votes, self._asked_at = {"vote": {self.rank}}, self.now
        self._call("vote", self.term)

    def _call(self, kind: Literal["poll", "vote"], term: int) -> None:
        for peer in sorted(frozenset().union(*self.electors()) - {self.rank}):
            self.tell(peer, messages.VoteRequest(kind, term, self.log.place))
        self._count(kind)

    def _count(self, kind: str) -> None:
        if not all(is_majority(self._votes.get(kind, ()), voters) for voters in self.electors()):
            return
        votes, self._votes = self._votes[kind], {}
        if kind == "poll":
            self._stand()
            return
        heard = dict.fromkeys(votes, self._asked_at)
        self.leads = self.rank
        self.office = Office(self, self._heard, heard)
        self.office.take()

    def _asked_for_vote(self, source: int, message: messages.VoteRequest) -> None:
        term, kind = message.term, message.kind
        is_deaf = not self._hears_the_leader()
        is_ours = tuple(message.place) >= self.log.place and is_deaf
        if is_deaf and not is_ours and self.rank in self.state.voters:
            self._stands_at = min(self._stands_at, self.now)  # as this log has entries that the other lacks
        if kind == "vote" and is_ours and term > self.term:
            self._follow(term, None)
        if kind == "vote":
            is_ours = is_ours and term == self.term and self._voted in (None, source)
        else:
            is_ours = is_ours and term > self.term
            if is_ours:  # so that one of several candidates wins
                self._stands_at = max(self._stands_at, self.now + self.limits.spread / 2)
                if source < self.rank:
                    self._votes.pop("poll", None)
        if is_ours and kind == "vote":
            self._voted, self._stands_at = source, self._next_stand()
        self.tell(source, messages.Vote("polled" if kind == "poll" else "voted", term, is_ours, self.term))

    def _voted_for(self, source: int, message: messages.Vote) -> None:
        kind = "poll" if message.kind == "polled" else "vote"
        if message.now_in > self.term and kind == "poll":
            self._follow(message.now_in, None)
        elif kind in self._votes and message.yes and message.term == self.term + (kind == "poll"):
            self._votes[kind].add(source)
            self._count(kind)

    def _follow(self, term: int, leads: int | None) -> None:
        if term > self.term:
            self.term, self._voted = term, None
        self.leads, self.office, self._votes = leads, None, {}

    # -- messages

    def received(self, source: int, message: Fields) -> None:
        """Handle a message of another worker."""
        if isinstance(message, messages.TakenForDead):
            if self.stopped is None:
                self.stopped = self.taken_for_dead()
            return
        if self.stopped is not None:
            return
        self.closed.pop(source, None)
        if source in self.state.members.dead:
            self.tell(source, messages.TakenForDead())
        elif isinstance(message, messages.Append):
            self._append(source, message)
        elif isinstance(message, messages.AppliedState):
            self._take_state(source, message)
        elif isinstance(message, messages.VoteRequest):
            self._asked_for_vote(source, message)
        elif isinstance(message, messages.Vote):
            self._voted_for(source, message)
        elif isinstance(message, messages.ReadIndex):
            if message.number in self.reads:
                self.readable([message.number], message.index)
        elif isinstance(message, messages.Acknowledgement) and message.term > self.term:
            self._follow(message.term, None)
        elif self.office is not None:
            self.office.received(source, message)

    def _is_of_our_leader(self, source: int, message: messages.FromLeader) -> bool:
        """Whether the message is of the current leader, which this worker then follows."""
        if message.term < self.term:
            self.tell(source, messages.Acknowledgement(self.term, yes=False, number=0, stamp=-1.0, applied=0))
            return False
        self._follow(message.term, source)
        self._heard, self._stands_at = self.now, self._next_stand()
        self.contact = max(self.contact, self.now - max(message.age, message.unheard))
        return True

    def _append(self, source: int, message: messages.Append) -> None:
        if not self._is_of_our_leader(source, message):
            return
        behind = message.behind
        follows = self.log.follows(behind, message.behind_term)
        number = self.log.merge(behind, message.entries) if follows else min(self.log.last, behind - 1)
        if follows:
            self.apply_up_to(min(message.applied, number))
            self.log.drop(min(message.all_have, self.applied))
        newest = max(number, self.applied)
        self.tell(source, messages.Acknowledgement(self.term, follows, newest, message.stamp, self.applied))

    def _take_state(self, source: int, message: messages.AppliedState) -> None:
        if not self._is_of_our_leader(source, message):
            return
        if message.applied > self.applied:
            self.state, self.applied = BoardState.from_json(message.state), message.applied
            self.log.begin(self.applied, message.applied_term)
            self.refresh()
        self.tell(source, messages.Acknowledgement(self.term, True, self.applied, message.stamp, self.applied))
