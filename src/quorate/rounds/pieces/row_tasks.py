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
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.core.fields import Header
from quorate.core.vectors import Flat, Layout
from quorate.rounds.coding import Coding
from quorate.rounds.copies import Copy
from quorate.rounds.fragments import PendingFragments
from quorate.rounds.log import Round
from quorate.rounds.progress import TAG, RoundTask, add
from quorate.rounds.row_delivery import Delivery, Stream, stream_of
from quorate.rounds.terms import Agreed

_EVENTS, _REPORTS = "events", "reports"
_HANDED = ("add", "keep", "restore")  # the words of training threads that each worker of a replica has its part of
_LOOK_SECONDS = 5.0


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
        self.say({"add": True})

    def _host_of(self, rank: int) -> int:
        return self._hosts[rank]

    def _new_dead(self, ranks: Collection[int]) -> list[int]:
        if self._wire.rank in ranks:
            raise PeerFailed("a worker of this replica has died")
        return sorted(set(ranks) - self.member.dead)

    def happen(self, event: Mapping[str, Any], message: Message | None = None) -> Any:
        self.member.applied = event["applied"]
        if event["what"] == "said" and "add" in event["said"]:
            with self.lock:
                add(self.member, *self._gradients.popleft())
            return None
        return super().happen(event, message)


class FirstTask(_RowTask):
    """The task of the first worker of a replica."""

    def __init__(self, row: Wire, *own: Any) -> None:
        self._delivery, self._events = Delivery(row.size), list[dict[str, Any]]()
        self._to_row, self._reports = row.channel(_EVENTS), row.channel(_REPORTS)
        super().__init__(row, *own)
        self._hearing = row.spawn(self._hear, _REPORTS)

    def close(self) -> None:
        super().close()
        self._reports.send(Message(header={"close": True}), 0, TAG)
        self._hearing.wait()

    def _hear(self, wire: Wire) -> None:
        while True:
            source, message = _next(wire)
            if "close" in message.header:
                return
            about = {"to": "row", "other": source, "has": message.header["has"]}
            self._wire.send(Message(header=about), self._wire.rank, TAG)

    def _take(self, source: int, message: Message) -> None:
        header = message.header
        if header.get("to") == "row":
            self._delivery.has(header["other"], *header["has"])
        elif "gone" in header:
            new = self._new_dead(header["gone"])
            self._delivery.forget(new)
            super()._take(source, Message(header={"gone": new}))
        elif source == self._wire.rank:
            super()._take(source, message)
        elif (asked := self._delivery.add(source, message)) is not None:
            self._tell_row({"ask": asked})
        for sender, whole in self._delivery.due():
            super()._take(sender, whole)

    def _happens(self, event: dict[str, Any], message: Message | None = None) -> Any:
        about = {**event, "now": self._wire.clock.now(), "applied": self._is_at}
        stream = None if message is None else stream_of(message)
        if stream is not None:
            about["stream"] = stream
        if stream == "copies":
            self._copies += 1
            about["header"] = {**event["header"], "place": self._copies}
            self._events.append({**about, "header": {**about["header"], "replica": None}})
        else:
            self._events.append(about)
        return self.happen(about, message)

    def _turned(self) -> None:
        if self._events:
            self._tell_row({"events": self._events})
            self._events = []

    def _tell_row(self, header: dict[str, Any]) -> None:
        for other in range(1, self._row.size):
            self._to_row.send(Message(header=header), other, TAG)

    def _run(self, wire: Wire) -> None:
        try:
            super()._run(wire)
        finally:
            self._turned()
            self._tell_row({"close": True})


class FollowingTask(_RowTask):
    """The task of another worker of a replica: what happens to the first one's member happens to this one's."""

    def __init__(self, row: Wire, *own: Any) -> None:
        self._there: dict[tuple[int, Stream], deque[Message]] = {}
        self._counts = Counter[tuple[int, Stream]]()
        self._due, self._handed_in, self._taken = deque[dict[str, Any]](), 0, 0
        self._is_told_to_close = self._ends = False
        self.rounds, self._newest, self._jumped = deque[Round](), 0, 0  # rounds that have come, and were not applied
        self.copies = deque[tuple[int, Copy]]()
        self._to_row, self._reports = row.channel(_EVENTS), row.channel(_REPORTS)
        super().__init__(row, *own)
        self._following = row.spawn(self._follow, _EVENTS)

    def say(self, header: dict[str, Any]) -> None:
        """Note that the training thread has done its part; the first worker tells the leader."""
        if not header.keys().isdisjoint(_HANDED):
            self._to_row.send(Message(header={"handed in": True}), self._row.rank, TAG)

    def close(self) -> None:
        self._to_row.send(Message(header={"ends": True}), self._row.rank, TAG)
        self._following.wait()
        self._wire.send(Message(header={"close": True}), self._wire.rank, TAG)
        self.task.wait()

    def _serve(self, wire: Wire) -> None:
        while "close" not in (arrived := _next(wire))[1].header:
            self._take(*arrived)

    def _take(self, source: int, message: Message) -> None:
        if "gone" in message.header:  # which others, the first worker tells
            self._new_dead(message.header["gone"])
            return
        stream = stream_of(message)
        assert stream is not None, "others than the first of a replica are sent pieces only"
        self._counts[source, stream] += 1
        self._there.setdefault((source, stream), deque()).append(message)
        self._report(source, stream, self._counts[source, stream])

    def _report(self, *has: Any) -> None:
        self._reports.send(Message(header={"has": list(has)}), 0, TAG)

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
            self._due.extend(header["events"])
        elif "ask" in header:
            self._report(-1, "asked", header["ask"])
        self._handed_in += "handed in" in header
        self._is_told_to_close |= "close" in header
        self._ends |= "ends" in header
        while self._due and self._is_ready(self._due[0]):
            self._happens(self._due.popleft())

    def _is_ready(self, event: Mapping[str, Any]) -> bool:
        if event["what"] != "said" or event["said"].keys().isdisjoint(_HANDED):
            return True
        if self._taken == self._handed_in:
            return False
        self._taken += 1
        return True

    def _happens(self, event: dict[str, Any], message: Message | None = None) -> Any:
        if "stream" in event:
            message = self._there[event["source"], event["stream"]].popleft()
        if event.get("stream") == "copies":
            assert message is not None
            event["header"]["replica"] = message.header["replica"]
        result = self.happen(event, message)
        if "restore" in event.get("said", ()):
            self._newest = self.member.log.newest
        self._collect()
        return result

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
