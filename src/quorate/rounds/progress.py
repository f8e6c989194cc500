"""The task beside each worker that answers for it in rounds, also while its training thread computes.

It lets events happen to a member: messages of others, what its own worker does, and time that passes. The state of a
member depends on these, in their order, and on nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import WireTimeout
from quorate.core.fields import Fields, Header
from quorate.core.members import DeathNotice
from quorate.core.vectors import Flat, Layout, empty_vector
from quorate.rounds import events
from quorate.rounds.coding import Coding, sparse_read, sparse_written
from quorate.rounds.forming import are_apart, on_one_host
from quorate.rounds.fragments import PendingFragments
from quorate.rounds.hosts.exchange import layout_of_piece
from quorate.rounds.log import at_once
from quorate.rounds.member import Member
from quorate.rounds.messages import Lease, Note
from quorate.rounds.pending import PendingGradients
from quorate.rounds.piecewise_sums import PiecewiseSums
from quorate.rounds.row_delivery import URGENT
from quorate.rounds.terms import Agreed
from quorate.wire.real.wall_clock import WallClock

TAG = "rounds"
NEWS = "news"
_LEASE = "lease"
_IDLE_SECONDS = 60.0
_AGAIN_SECONDS = 0.01  # seconds after which to look again at a worker that is about to lead, where the leader has died


def add(member: Member, vector: Flat, about: Mapping[str, Any]) -> None:
    """Add a gradient, which waits for a round from now on. Threads that share the member lock."""
    assert isinstance(member.pending, PendingGradients), "fragments are contributed"
    member.pending.add(vector, **about)


@dataclass(frozen=True, slots=True)
class Lying(Fields):
    """How the vector of a message lies in its tensors: fields of the messages that may have one."""

    number: int
    is_pause: bool
    coded: bool = False
    piece: int | None = None
    of: int | None = None
    sparse: Sequence[bool] | None = None  # by part, whether it is sent as places and numbers: added between hosts


class RoundTask:
    """The task that carries messages between `member` and the wire, does what is due, and takes the lease when it must.
    `wire` is the training thread's; the task runs on `wire.channel("progress")`, which it owns but for sends."""

    _adds_pieces = True
    """Whether workers add pieces of large sums."""
    _may_note_at_once = True
    """Whether the training thread may tell the member itself what it does, without waking the task."""

    def __init__(
        self,
        wire: Wire,
        agreed: Agreed,
        layout: Layout,
        pending: PendingFragments | None = None,
        coding: Coding | None = None,
    ) -> None:
        self._coding = coding
        self.lock = threading.Lock()
        self.layout, self._mine, self._handed = layout, wire, pending
        self._wire = wire.channel("progress")
        at_hand = at_once(agreed, wire.rank) if pending is None else 0
        self._spare = [empty_vector(layout, wire.empty) for _ in range(at_hand)]
        host_of = self._host_of if are_apart(self._host_of, agreed.ranks) else on_one_host
        self._sums = PiecewiseSums(self._wire, self._send, self.blank, agreed.sum_threads)
        own = agreed, wire.rank, self._send, self.lock, self._tell, self.blank, pending, host_of, self._layout_of
        self.member = Member(*own, self._sums.add_with if self._adds_pieces else None)
        if isinstance(self.member.pending, PendingGradients):
            self.member.pending.coding = coding
        elif pending is not None:
            pending.code_by(coding)
        if self.member.between is not None:
            self.member.between.codes = None if coding is None else coding.codes
        self._own = deque[Message]()
        """Messages of the member to itself, which are taken after those that are there already."""
        self._written_last: tuple[Header, Flat | None, Message] | None = None
        """The newest small message: the wire writes one that goes to many workers once."""
        self._turn = threading.Lock()
        """Held by the thread that lets events happen to the member."""
        self._unheard = deque[None]()
        """One entry for each word of this worker that the task has not taken yet: words stay in order."""
        self.notes_at_once = self._may_note_at_once and isinstance(wire.clock, WallClock)
        self.error: BaseException | None = None
        self.is_waiting = False  # whether the training thread waits for a round: then the leader is watched
        self._pinged: float | None = None
        self._is_open = True
        if agreed.tolerates_death:
            self._wire.tolerate_deaths(TAG)
            self.member.have_died(self._wire.dead, self._wire.clock.now())  # one that joins has not seen them go
        self.task = wire.spawn(self._run, "progress")

    def blank(self, layout: Layout) -> Flat:
        if layout is self.layout:
            with suppress(IndexError):
                return self._spare.pop()
        return empty_vector(layout, self._wire.empty)

    def lay_out(self, layout: Layout) -> None:
        """Lay out vectors by `layout` from now on."""
        self.layout, self._spare = layout, []
        if self._coding is not None:
            with self.lock:
                self._coding.lay_out(layout)

    # -- for the training thread

    @property
    def applied(self) -> int:
        return self.member.applied

    @applied.setter
    def applied(self, number: int) -> None:
        self.member.applied = number

    def add(self, vector: Flat, about: Mapping[str, Any]) -> None:
        with self.lock:
            add(self.member, vector, about)

    def say(self, word: events.ThreadWord | Note) -> None:
        """Tell the member something of this worker: a word of `events`, or a note."""
        if not (self.notes_at_once and isinstance(word, Note) and self._noted_at_once(word)):
            self._unheard.append(None)
            self._wire.send(Message(header={"to": "member", **word.header()}), self._wire.rank, TAG)

    def _noted_at_once(self, note: Note) -> bool:
        """Let the member of a worker that follows another one note its activity, unless that is the task's turn."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            member = self.member
            if self._unheard or member.leads == member.rank or self.error is not None:
                return False
            self._happens(events.Said(note))
        finally:
            self._turn.release()
        return True

    def carry(self, to: int, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Send another worker's member a message with tensors of any kind."""
        self._wire.send(Message(tuple(tensors), header, shared=True), to, TAG)

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.say(events.Word("close"))
        self.task.wait()
        self._sums.close()

    # -- the task

    def _run(self, wire: Wire) -> None:
        try:
            self._serve(wire)
        except BaseException as error:  # the training thread waits for news, and raises it
            self.error = error
            self._tell()
            raise

    def _serve(self, wire: Wire) -> None:
        asked = wire.receive(None, TAG)
        while self._is_open:
            arrived = None
            with suppress(WireTimeout):
                arrived = None if self._own else asked.wait(self._seconds())
            with self._turn:
                if arrived is not None:
                    asked = wire.receive(None, TAG)
                    self._take(*arrived)
                asked = self._take_all(wire, asked)
                self._happens(events.Passed())
                self._watch(wire.clock.now())

    def _take_all(self, wire: Wire, asked: Work[tuple[int, Message]]) -> Work[tuple[int, Message]]:
        """Take what is there already, which is not silence; return the receive of the next message."""
        while True:
            while asked.done():
                arrived, asked = asked.wait(), wire.receive(None, TAG)
                self._take(*arrived)
            if not self._own:
                return asked
            self._take(self._wire.rank, self._own.popleft())

    def _take(self, source: int, message: Message) -> None:
        header = dict(message.header)
        if header.get("kind") == "add":
            self._sums.help(header)
        elif "gone" in header:
            self._happens(events.Died(DeathNotice.read(header).ranks))
        elif header.pop("to", None) != "member":
            self._happens(events.Received(source, header), message)
        elif header.get("close"):
            self._is_open = False
        else:
            self._happens(events.Said(events.read_word(header)))
            if self._unheard:
                self._unheard.popleft()

    def _happens(self, event: events.Event, message: Message | None = None) -> int | None:
        now = self._wire.clock.now()
        if message is None or not message.tensors:
            return event.happen(self.member, now)
        return self.happen(event, now, message)

    def happen(self, event: events.Event, now: float, message: Message | None = None) -> int | None:
        """Let an event happen to the member; a received header says how the vector of `message` is laid out."""
        if message is None or not message.tensors:
            return event.happen(self.member, now)
        assert isinstance(event, events.Received), "tensors come in messages"
        if event.message["kind"] == "copy":
            return event.happen(self.member, now, tensors=message.tensors)
        lying = Lying.read(event.message)
        layout = self._layout_of(lying.number, lying.is_pause)
        if lying.coded:
            assert self._coding is not None, "all have the same codec"
            layout = self._coding.codes.layout(layout) or layout
        if lying.piece is not None and lying.of is not None:
            layout = layout_of_piece(layout, lying.piece, lying.of)
        if lying.sparse is None:
            return event.happen(self.member, now, Flat(message.tensors, layout))
        return event.happen(self.member, now, sparse_read(message.tensors, lying.sparse, layout, self.blank))

    def _host_of(self, rank: int) -> int:
        return self._wire.host_of(rank)

    def _layout_of(self, number: int, is_pause: bool) -> Layout:
        return self.layout if self._handed is None else self._handed.fragments.layout(number, is_pause=is_pause)

    def _seconds(self) -> float:
        member, now = self.member, self._wire.clock.now()
        until = [now + (_AGAIN_SECONDS if member.leads in member.dead else _IDLE_SECONDS)]
        if member.leader is not None:
            until.append(member.leader.looks_at)
        if member.asks_until is not None:
            until.append(member.asks_until)
        if member.between is not None:
            until.append(member.between.asks_at)
        if self.is_waiting and member.leads != member.rank:
            until.append((member.heard_at if self._pinged is None else self._pinged) + member.patience.seconds)
        return max(0.0, min(until) - now) + 1e-6

    def _watch(self, now: float) -> None:
        member = self.member
        if member.is_wanted or member.leads in member.dead:
            member.is_wanted = False
            self._stand()
        elif not self.is_waiting or member.leads == member.rank or member.heard_at > (self._pinged or now):
            self._pinged = None
        elif self._pinged is None:
            if now >= member.heard_at + member.patience.seconds:
                self._pinged = now
                member.ping()
        elif now >= self._pinged + member.patience.seconds:
            self._pinged = None
            member.heard_at = now
            self._stand()

    def _stand(self) -> None:
        board, key = self._wire.board, f"{self._wire.name}/{_LEASE}"
        written = board.get(key)
        lease = Lease() if written is None else Lease.from_bytes(written)
        if (term := self._happens(events.LeaseRead(lease))) is None:
            return
        new = Lease(term, self._wire.rank).to_bytes()
        if board.swap(key, written, new):
            self._happens(events.LeaseTaken(term))

    def _send(self, to: int, header: Header, vector: Flat | None) -> None:
        message = self._written(to, header, vector)
        if to == self._wire.rank:
            self._own.append(message)
        else:
            self._wire.send(message, to, TAG)

    def _written(self, to: int, header: Header, vector: Flat | None) -> Message:
        tensors = () if vector is None else vector.parts
        if self._written_last is not None and self._written_last[0] is header and self._written_last[1] is vector:
            return self._written_last[2]
        if (
            vector is not None
            and self._coding is not None
            and not header.get("coded")
            and self._host_of(to) != self._host_of(self._wire.rank)
        ):
            tensors, are_sparse = sparse_written(vector)
            header = {**header, "sparse": are_sparse} if any(are_sparse) else header
        message = Message(tensors, header, shared=True, urgent=header["kind"] in URGENT)
        if self._coding is None and not self.member.agreed.is_large:
            self._written_last = header, vector, message
        return message

    def _tell(self) -> None:
        self._mine.send(Message(), self._mine.rank, NEWS)
