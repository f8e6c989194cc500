"""Rounds of replicas in pieces: the first worker of each replica takes part, and the others do as it does.

A replica is one worker of its rounds. Its first worker is that worker's member. It decides, and sends the others of its
replica everything that happens to it, in order. This is a replicated state machine (Schneider, "Implementing
fault-tolerant services using the state machine approach: a tutorial", ACM Computing Surveys 1990). The others let the
same happen to members of their own, which so send the same vectors to the same replicas. Each worker sends its piece to
the worker that holds the same piece there. A message with a vector counts as there when all workers of the replica have
their piece.

Cost per message with a vector: one small message from each other worker to the first; per turn of the first one's task,
one to each other worker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.core.fields import Fields, Header
from quorate.core.members import DeathNotice
from quorate.core.vectors import Flat, Layout
from quorate.rounds.coding import Coding
from quorate.rounds.copies import Copy
from quorate.rounds.events import Event, Received, Said, Word, read_event
from quorate.rounds.fragments import PendingFragments
from quorate.rounds.log import Round
from quorate.rounds.progress import TAG, RoundTask, add
from quorate.rounds.row_delivery import Delivery, Stream, stream_of
from quorate.rounds.terms import Agreed

_EVENTS, _REPORTS = "events", "reports"
_HANDED = (Word("add"), Word("keep"), Word("restore"))  # each worker of a replica has its part of these
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RowEvent(Fields):
    """An event of the first worker's member, at time `now`; for a message with tensors, the `stream` of its pieces."""

    event: Event
    now: float
    applied: int  # the newest round that the first worker has applied
    stream: Stream | None = None

    def header(self) -> dict[str, Any]:
        header = {**self.event.header(), "now": self.now, "applied": self.applied}
        return header if self.stream is None else {**header, "stream": self.stream}

    @classmethod
    def read(cls, header: Header, **others: Any) -> RowEvent:
        return super(RowEvent, cls).read(header, event=read_event(header))

    def with_message(self, **fields: Any) -> RowEvent:
        """Return the event with other `fields` in the header of its message."""
        assert isinstance(self.event, Received), "only messages have headers"
        return replace(self, event=Received(self.event.source, {**self.event.message, **fields}))


@dataclass(frozen=True, slots=True)
class RowEvents(Fields):
    """The message of the first worker to the others: events in their order."""

    events: Sequence[RowEvent]

    def header(self) -> dict[str, Any]:
        return {"events": [event.header() for event in self.events]}

    @classmethod
    def read(cls, header: Header, **others: Any) -> RowEvents:
        return cls([RowEvent.read(event) for event in header["events"]])


@dataclass(frozen=True, slots=True)
class Question(Fields):
    """The question of the first worker whether another one is there, with its number."""

    ask: int


@dataclass(frozen=True, slots=True)
class Has(Fields):
    """The message of another worker to the first: the source, stream and number of a piece; see `Delivery.has`."""

    has: Sequence[Any]


@dataclass(frozen=True, slots=True)
class RowReport(Fields):
    """The message `Has` of worker `other`, as the first worker forwards it to its task."""

    to: Literal["row"] = field(init=False, default="row")
    other: int
    has: Sequence[Any]


@dataclass(frozen=True, slots=True)
class RowSignal(Fields):
    """A message without fields of its own to a task: the end of the first worker or this one, or a word said here."""

    kind: Literal["close", "ends", "handed in"]

    def header(self) -> dict[str, Any]:
        return {self.kind: True}

    @classmethod
    def read(cls, header: Header, **others: Any) -> RowSignal:
        kind: Any = next(iter(header))
        return cls(kind)


class _RowTask(RoundTask):
    """The common part of both tasks. `row` are the workers of the replica, which call this together."""

    _adds_pieces = _may_note_at_once = False

    def __init__(
        self,
        row: Wire,
        wire: Wire,
        agreed: Agreed,
        layout: Layout,
        pending: PendingFragments | None,
        coding: Coding | None,
    ) -> None:
        self._row, self._gradients = row, deque[tuple[Flat, Mapping[str, Any]]]()
        self._is_at = 0
        self._copies = 0
        hosts = torch.tensor([wire.host_of(rank) for rank in range(wire.max_size)])
        self._hosts: list[int] = row.channel("hosts").broadcast(hosts, 0).wait().tolist()
        super().__init__(wire, agreed, layout, pending, coding)

    @property
    def applied(self) -> int:
        return self._is_at

    @applied.setter
    def applied(self, number: int) -> None:
        self._is_at = number

    def add(self, vector: Flat, about: Mapping[str, Any]) -> None:
        self._gradients.append((vector, about))
        self.say(Word("add"))

    def _host_of(self, rank: int) -> int:
        return self._hosts[rank]

    def _new_dead(self, ranks: Sequence[int]) -> list[int]:
        if self._wire.rank in ranks:
            raise PeerFailed("a worker of this replica has died")
        return sorted(set(ranks) - self.member.dead)

    def _happens_in_row(self, row_event: RowEvent, message: Message | None) -> int | None:
        self.member.applied, event = row_event.applied, row_event.event
        if isinstance(event, Said) and event.word == Word("add"):
            with self.lock:
                add(self.member, *self._gradients.popleft())
            return None
        return self.happen(event, row_event.now, message)


class FirstTask(_RowTask):
    """The task of the first worker of a replica."""

    def __init__(self, row: Wire, *own: Any) -> None:
        self._delivery, self._events = Delivery(row.size), list[RowEvent]()
        self._to_row, self._reports = row.channel(_EVENTS), row.channel(_REPORTS)
        super().__init__(row, *own)
        self._hearing = row.spawn(self._hear, _REPORTS)

    def close(self) -> None:
        super().close()
        self._reports.send(Message(header=RowSignal("close").header()), 0, TAG)
        self._hearing.wait()

    def _hear(self, wire: Wire) -> None:
        while True:
            source, message = _next(wire)
            if "close" in message.header:
                return
            report = RowReport(source, Has.read(message.header).has)
            self._wire.send(Message(header=report.header()), self._wire.rank, TAG)

    def _take(self, source: int, message: Message) -> None:
        header = message.header
        if header.get("to") == "row":
            report = RowReport.read(header)
            self._delivery.has(report.other, *report.has)
        elif "gone" in header:
            new = self._new_dead(DeathNotice.read(header).ranks)
            self._delivery.forget(new)
            super()._take(source, Message(header=DeathNotice(new).header()))
        elif source == self._wire.rank:
            super()._take(source, message)
        elif (asked := self._delivery.add(source, message)) is not None:
            self._tell_row(Question(asked))
        for sender, whole in self._delivery.due():
            super()._take(sender, whole)

    def _happens(self, event: Event, message: Message | None = None) -> int | None:
        row_event = RowEvent(
            event, self._wire.clock.now(), self._is_at, None if message is None else stream_of(message)
        )
        if row_event.stream == "copies":
            self._copies += 1
            row_event = row_event.with_message(place=self._copies)
            self._events.append(row_event.with_message(replica=None))
        else:
            self._events.append(row_event)
        return self._happens_in_row(row_event, message)

    def _watch(self, now: float) -> None:
        super()._watch(now)
        self._tell_events()

    def _tell_events(self) -> None:
        if self._events:
            self._tell_row(RowEvents(self._events))
            self._events = []

    def _tell_row(self, fields: Fields) -> None:
        message = Message(header=fields.header())
        for other in range(1, self._row.size):
            self._to_row.send(message, other, TAG)

    def _run(self, wire: Wire) -> None:
        try:
            super()._run(wire)
        finally:
            self._tell_events()
            self._tell_row(RowSignal("close"))


class FollowingTask(_RowTask):
    """The task of another worker of a replica: what happens to the first one's member happens to this one's."""

    def __init__(self, row: Wire, *own: Any) -> None:
        self._there: dict[tuple[int, Stream], deque[Message]] = {}
        self._counts = Counter[tuple[int, Stream]]()
        self._due, self._handed_in, self._taken = deque[RowEvent](), 0, 0
        self._is_told_to_close = self._ends = False
        self.rounds, self._newest, self._jumped = deque[Round](), 0, 0  # rounds that have come, and were not applied
        self.copies = deque[tuple[int, Copy]]()
        self._to_row, self._reports = row.channel(_EVENTS), row.channel(_REPORTS)
        super().__init__(row, *own)
        self._following = row.spawn(self._follow, _EVENTS)

    def say(self, word: Fields) -> None:
        """Note that the training thread has done its part; the first worker tells the leader."""
        if word in _HANDED:
            self._to_row.send(Message(header=RowSignal("handed in").header()), self._row.rank, TAG)

    def close(self) -> None:
        self._to_row.send(Message(header=RowSignal("ends").header()), self._row.rank, TAG)
        self._following.wait()
        self._wire.send(Message(header=RowSignal("close").header()), self._wire.rank, TAG)
        self.task.wait()

    def _serve(self, wire: Wire) -> None:
        while "close" not in (arrived := _next(wire))[1].header:
            self._take(*arrived)

    def _take(self, source: int, message: Message) -> None:
        if "gone" in message.header:  # which others, the first worker tells
            self._new_dead(DeathNotice.read(message.header).ranks)
            return
        stream = stream_of(message)
        assert stream is not None, "others than the first of a replica are sent pieces only"
        self._counts[source, stream] += 1
        self._there.setdefault((source, stream), deque()).append(message)
        self._report(source, stream, self._counts[source, stream])

    def _report(self, *has: Any) -> None:
        self._reports.send(Message(header=Has(has).header()), 0, TAG)

    def _follow(self, wire: Wire) -> None:
        try:
            self._let_happen(wire)
        except BaseException as error:  # the training thread waits for news, and raises it
            self.error = error
            self._tell()
            raise

    def _let_happen(self, wire: Wire) -> None:
        asked = wire.receive(None, TAG)
        while not (self._is_told_to_close and self._ends):
            try:
                _, message = asked.wait(_LOOK_SECONDS)
            except WireTimeout:
                if self._ends:  # the first worker is not there any more
                    return
                continue
            asked = wire.receive(None, TAG)
            self._hear(message.header)

    def _hear(self, header: Mapping[str, Any]) -> None:
        if "events" in header:
            self._due.extend(RowEvents.read(header).events)
        elif "ask" in header:
            self._report(-1, "asked", Question.read(header).ask)
        else:
            kind = RowSignal.read(header).kind
            self._handed_in += kind == "handed in"
            self._is_told_to_close |= kind == "close"
            self._ends |= kind == "ends"
        while self._due and self._is_ready(self._due[0]):
            self._follow_event(self._due.popleft())

    def _is_ready(self, row_event: RowEvent) -> bool:
        if not (isinstance(row_event.event, Said) and row_event.event.word in _HANDED):
            return True
        if self._taken == self._handed_in:
            return False
        self._taken += 1
        return True

    def _follow_event(self, row_event: RowEvent) -> None:
        message = None
        if row_event.stream is not None:
            assert isinstance(row_event.event, Received), "streams are of messages"
            message = self._there[row_event.event.source, row_event.stream].popleft()
            if row_event.stream == "copies":
                row_event = row_event.with_message(replica=message.header["replica"])
        self._happens_in_row(row_event, message)
        if row_event.event == Said(Word("restore")):
            self._newest = self.member.log.newest
        self._collect()

    def _collect(self) -> None:
        member = self.member
        if member.copy is not None:
            self.copies.append(member.copy)
            member.copy = None
        if member.jumps != self._jumped:
            self._jumped, self._newest = member.jumps, member.log.newest
        while (formed := member.log.get(self._newest + 1)) is not None:
            self.rounds.append(formed)
            self._newest += 1
        if self.copies or self.rounds:
            self._tell()  # the member has told of it before it was here

    def _send(self, to: int, header: Header, vector: Flat | None) -> None:
        if vector is None:
            return
        message = self._written(to, header, vector)
        if to == self._wire.rank:
            self._there.setdefault((to, "vectors"), deque()).append(message)
        else:
            self._wire.send(message, to, TAG)


def row_task(*own: Any, row: Wire) -> RoundTask:
    """Return the task of this worker, by its place in its `row`."""
    return (FollowingTask if row.rank else FirstTask)(row, *own)


def _next(wire: Wire) -> tuple[int, Message]:
    asked = wire.receive(None, TAG)
    while True:
        with suppress(WireTimeout):
            return asked.wait(_LOOK_SECONDS)
