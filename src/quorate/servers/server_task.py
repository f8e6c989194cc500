"""The task that keeps a part of the parameters for all workers: gradients come, parameters go. Or a part of a centre:
parameters come, and it goes.

What one server has done: how stale gradients were and what they counted, how long it was busy, bytes in and out.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.servers import ServerTerms
from quorate.means.edge_coding import EdgeCoding
from quorate.records.served_rows import Served
from quorate.servers.centre import Centre
from quorate.servers.decisions import Decision, Push, Taken
from quorate.servers.holders import Holders
from quorate.servers.kept_part import KeptPart, PartPushed
from quorate.servers.order import Order
from quorate.servers.setting_out import WANTED, Coming, Receiver
from quorate.servers.shard import Shard
from quorate.servers.succession import KINDS, Succession, Told
from quorate.wire.attendant import Attendant

READ = "parameters"
"""The tag under which a server answers."""


@dataclass(frozen=True)
class _Pushed:
    """What a worker has pushed to this server."""

    version: int
    """Of the parameters that the gradient is of."""
    count: int
    """Of how many steps it is; 0 where there is none."""
    options: Sequence[dict[str, Any]]
    parts: Mapping[int, PartPushed]


class ServerTask:
    """One rank's; `wire` is its main thread's. The first server decides on the order, unless each does."""

    def __init__(
        self,
        wire: Wire,
        terms: ServerTerms,
        workers: Sequence[int],
        version: int,
        receiver: Receiver,
        *,
        name: str,
        coding: EdgeCoding | None,
    ) -> None:
        """`name` is the optimizer's, and `coding` how workers write their gradients small."""
        self._wire, self._terms, self._rank = wire, terms, wire.rank
        self._holders = Holders(terms.servers, terms.replication)
        self._succession = Succession(
            wire.rank, self._holders, lambda message, to: self.send(message, to), is_alone=not terms.consistent
        )
        decides = self._succession.decides
        self.book = ServerBook(wire.rank, name, decides=lambda: self._succession.decides)
        """What it has done."""
        self._order = Order(terms, workers, version, decides=decides)
        self._stretch = self._ended = 0
        """The newest stretch of which something came here, and the newest in which all have left."""
        self._pushed: dict[tuple[int, int], _Pushed] = {}
        self._told: deque[Told] = deque()
        """Decisions to be carried out."""
        self._early: list[tuple[int, Message]] = []
        self._given = deque[tuple[Mapping[int, Shard | Centre], float]]()
        self._next: tuple[Mapping[int, Shard | Centre], float] | None = None
        """What it is to keep, and from which stretch on."""
        self._has = self._set_out = 0.0
        """The newest stretch for which it has its parts, and for which it has set out."""
        self._parts: dict[int, KeptPart] = {}
        self._reading = set[int]()
        """Who has to read what all have come to, before anything changes: some of it may be asked for again."""
        self._coding = coding
        self._receiver, self._coming = receiver, Coming(self._tell)
        self._error: Exception | None = None
        self.served = Attendant(wire, "server", self._take)
        self.send, self.close = self.served.send, self.served.close

    def check(self) -> None:
        """Raise what the server has ended with."""
        if self._error is not None:
            raise self._error

    def hears_of_deaths(self) -> None:
        """From now on this server goes on without who has died."""
        self.served.hears_of_deaths()

    def set_out(self, parts: Mapping[int, Shard | Centre], stretch: int) -> None:
        """All set out (again), for the `stretch`-th time: this is what the server keeps."""
        self._given.append((parts, stretch))
        self.send(Message(header={"kind": "set out"}), self._rank)

    def ends(self) -> None:
        """This worker was to set out, and does not: its server goes on with what it keeps, whenever the others do."""
        self._given.append(({}, math.inf))
        self.send(Message(header={"kind": "set out"}), self._rank)

    # -- the task

    def _take(self, source: int, message: Message) -> None:
        begin = self._wire.clock.now()
        try:
            self._take_in(source, message)
            self.book.handled(source, message, self._wire.clock.now() - begin)
        except Exception as error:  # the training thread of this worker raises it; who waits for an answer hears of it
            self._error = error
            why = f"{type(error).__name__}: {error}"
            for rank in () if self._wire.is_newcomer else self._wire.alive:  # one without training ends at once
                for tag in (READ, WANTED):
                    self._wire.send(Message(header={"failed": why}), rank, tag)
            raise

    def _take_in(self, source: int, message: Message) -> None:
        header = message.header
        kind = header.get("kind")
        if "gone" in header:
            self._die(header["gone"])
        elif kind in KINDS:
            for told in self._succession.came(source, header):
                self._follow(told)
        elif kind == "set out":
            self._is_given(*self._given.popleft())
        elif kind == "comes":
            self._coming.came(source, is_known=header["stretch"] <= self._has)
        elif kind == "part":
            self._is_given(self._receiver.parts(message), header["stretch"])
            self._coming.gave()
        elif kind == "has read":
            self._has_read(source)
        elif header["stretch"] > self._set_out or (self._reading and header["stretch"] > self._ended):
            self._early.append((source, message))
        else:
            self._handle(source, message)
        if self._succession.decides and not self._order.decides:
            self._decide(self._order.decide())
        self._go_on()

    def _tell(self, rank: int, is_wanted: bool) -> None:
        self._wire.send(Message(header={"wanted": is_wanted}), rank, WANTED)

    def _is_given(self, parts: Mapping[int, Shard | Centre], stretch: float) -> None:
        self._next, self._has = (parts, stretch), stretch
        self._sets_out()

    def _sets_out(self) -> None:
        if self._reading:
            return
        if self._next is not None:
            (parts, self._set_out), self._next = self._next, None
            if parts:
                self._parts = {part: KeptPart(kept, self._terms, self._coding) for part, kept in parts.items()}
        early, self._early = self._early, []
        for source, message in early:
            self._take_in(source, message)

    def _has_read(self, rank: int) -> None:
        """It has all that it was to read at a rest."""
        self._reading.discard(rank)
        self._sets_out()

    def _handle(self, source: int, message: Message) -> None:
        header = message.header
        kind, is_of_now = header["kind"], header["stretch"] > self._ended
        self._stretch = max(self._stretch, int(header["stretch"]))
        if kind == "push":
            number, version, count = int(header["number"]), int(header["version"]), int(header["count"])
            self._pushed[source, number] = _Pushed(version, count, header["options"], self._opened(source, message))
            self._succession.has_read(int(header["has read"]))
            if is_of_now:  # else it has been decided
                self._decide(self._order.came(Push(source, number, version, count, bool(header["reads"]))))
        elif kind == "again":
            self._die(header["dead"])
            self._decide(self._order.asks_again(source, int(header["number"])))
        elif kind == "joins":
            self._decide(self._order.comes(source, int(header["attempt"])))
        elif kind == "withdraws":
            self._decide(self._order.withdraws(source, int(header["attempt"])))
        elif kind == "read":
            if is_of_now or source in self._order.ended:  # who has ended reads when all have
                self._decide(self._order.asks(source))
        elif is_of_now:
            self._decide(self._order.leaves(source, kind))

    def _opened(self, source: int, message: Message) -> dict[int, PartPushed]:
        """What it has pushed, by part."""
        header, at, found = message.header, 0, {}
        for part, unused in zip(self._holders.parts_of(self._rank), header["unused"], strict=True):
            cut = self._receiver.cut(part)
            count = len(cut.pieces) if header["has gradient"] else 0
            gradient: Sequence[Tensor] = message.tensors[at : at + count]
            if self._coding is not None and count:
                gradient = self._coding.decode(gradient, cut.layout, int(header["draw"]), source).parts
            more = len(cut.pieces) if header["has edit"] else 0
            edit = message.tensors[at + count : at + count + more]
            at += count + more
            found[part] = PartPushed(gradient, edit, frozenset(unused))
        return found

    def _die(self, gone: Sequence[int]) -> None:
        new = [int(rank) for rank in gone if rank not in self._succession.dead]
        self._succession.died(new)
        for rank in new:
            self._decide(self._order.died(rank))
            self._has_read(rank)
        self._coming.died(new)

    def _decide(self, decisions: Sequence[Decision]) -> None:
        for one in decisions:
            self._follow(self._succession.tell(one, self._stretch), is_ours=True)

    def _follow(self, told: Told, *, is_ours: bool = False) -> None:
        self._told.append(told)
        if not is_ours:
            self._order.follow(told.one)
        if told.one.is_last and not told.one.repeats:  # those that have rested set out together
            self._order, self._ended = self._order.next_one(told.one), told.stretch

    def _go_on(self) -> None:
        """Carry out the decisions that can be, in their order."""
        while self._told and self._parts and self._told[0].stretch <= self._set_out:
            told, dead = self._told[0], self._succession.dead
            needed = {(x.source, x.number) for x in told.one.taken}.union(told.one.dropped)
            if any(key not in self._pushed and key[0] not in dead for key in needed):
                return
            self._told.popleft()
            self._carry_out(told)

    def _carry_out(self, told: Told) -> None:
        one = told.one
        taken = [(x, push) for x in one.taken if (push := self._pushed.pop((x.source, x.number), None)) is not None]
        if self._terms.elastic is not None:
            self._answer(told)  # where it was before: the worker goes as far the other way
            for x, push in taken:
                for part, kept in self._parts.items():
                    kept.draw(push.parts[part])
                self.book.stepped([x], one.rate, len(self._order.everyone))
            return
        dropped = [(key[0], push) for key in one.dropped if (push := self._pushed.pop(key, None)) is not None]
        self.book.dropped((rank, one.version - push.version) for rank, push in dropped if push.count)
        known = {(x.source, x.number): push.options for x, push in taken}
        for part, kept in self._parts.items():
            kept.write([push.parts[part] for _, push in (*taken, *dropped)])
            if taken:
                options = known.get(one.options_of, taken[-1][1].options)
                kept.step([(x, push.parts[part]) for x, push in taken], options, one.rate)
        if taken:
            self.book.stepped([x for x, _ in taken], one.rate, len(self._order.everyone))
        if one.readers:
            self._answer(told)

    def _answer(self, told: Told) -> None:
        one, spoken = told.one, self._holders.speaks_for(self._rank, told.dead)
        if one.is_last and not one.repeats and self._terms.replication > 1:
            self._reading = {reader for reader, _ in one.readers} - self._succession.dead
        ages = {x.source: x.staleness for x in one.taken}
        parts: list[dict[str, Any]] = []
        kept: list[Tensor] = []
        read = {part: kept.read(one, self._wire.empty, is_sent=part in spoken) for part, kept in self._parts.items()}
        for part in spoken:
            states, some = self._parts[part].states if one.is_last else ([], [])
            parts.append({"part": part, "numbers": self._parts[part].count, "states": states, "kept": len(some)})
            if one.is_last:
                kept_part = self._parts[part]
                parts[-1] |= {"options": kept_part.own_options, "beside": kept_part.beside}
            kept += some
        about: dict[str, Any] = {"index": told.index, "version": one.version, "there": one.there, "parts": parts}
        about |= {"contributors": len(one.taken), "is whole": one.is_whole}
        clocks = dict(one.joined)
        for reader, number in one.readers:
            mine = {"number": number, "staleness": ages.get(reader), "clock": clocks.get(reader)}
            sent = [x for part in spoken for x in read[part][reader]]
            answer = Message((*sent, *kept), {**about, **mine}, shared=True)
            self._wire.send(answer, reader, READ)
            self.book.answered(reader, answer)


EVERY_SECONDS = 5.0
"""At most so long until it is told; all is told when all rest."""


@dataclass
class _Total:
    """Since the beginning."""

    busy: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    steps: int = 0
    taken: Counter[int] = field(default_factory=Counter)
    """Gradients, by staleness."""
    counted: Counter[int] = field(default_factory=Counter)
    """Millionths of an equal share, by staleness."""
    dropped: Counter[int] = field(default_factory=Counter)
    by_rank: Counter[int] = field(default_factory=Counter)
    """Gradients in steps."""
    dropped_by_rank: Counter[int] = field(default_factory=Counter)

    def copy(self) -> _Total:
        """As it is now: each counter by itself, since the server goes on meanwhile."""
        return replace(
            self,
            taken=self.taken.copy(),
            counted=self.counted.copy(),
            dropped=self.dropped.copy(),
            by_rank=self.by_rank.copy(),
            dropped_by_rank=self.dropped_by_rank.copy(),
        )


_MILLION = 1_000_000


class ServerBook:
    """Written in the server's task, read in the training thread: what is read may lack the end of a step, which then
    comes with the next row, and nothing is lost.

    Cost: some 5 µs a gradient; a row, some 100 µs, every `EVERY_SECONDS` and at every rest.
    """

    def __init__(self, rank: int, optimizer: str, *, decides: Callable[[], bool]) -> None:
        """`decides` says whether this server does, now."""
        self._rank, self._optimizer, self._decides = rank, optimizer, decides
        self._now, self._told, self._since = _Total(), _Total(), 0.0

    # -- in the server's task

    def handled(self, source: int, message: Message, seconds: float) -> None:
        """A message has come, and was handled in so many seconds."""
        self._now.busy += seconds
        if source != self._rank:
            self._now.bytes_in += _bytes_of(message)

    def answered(self, reader: int, message: Message) -> None:
        """Parameters went out."""
        if reader != self._rank:
            self._now.bytes_out += _bytes_of(message)

    def stepped(self, taken: Sequence[Taken], rate: float, everyone: int) -> None:
        """A step of these gradients was made, at the learning rate times `rate`, where `everyone` counts."""
        total = self._now
        total.steps += 1
        if self._decides():
            for one in taken:
                total.taken[one.staleness] += 1
                total.counted[one.staleness] += round(one.factor * rate * everyone * _MILLION)
                total.by_rank[one.source] += 1

    def dropped(self, gradients: Iterable[tuple[int, int]]) -> None:
        """Gradients count for nothing: rank and staleness of each."""
        if self._decides():
            for rank, staleness in gradients:
                self._now.dropped[staleness] += 1
                self._now.dropped_by_rank[rank] += 1

    # -- in the training thread

    def set_out(self, now: float) -> None:
        """All set out, at that time of the clock."""
        self._since = now

    def is_due(self, now: float) -> bool:
        """Whether it is time to tell."""
        return now - self._since >= EVERY_SECONDS

    def row(self, now: float) -> Served | None:
        """What was done since the row before; None where that is nothing."""
        new, old, since = self._now.copy(), self._told, self._since
        self._told, self._since = new, now
        if new == old:
            return None
        return Served(
            time=now,
            optimizer=self._optimizer,
            seconds=now - since,
            busy=round(new.busy - old.busy, 6),
            bytes_in=new.bytes_in - old.bytes_in,
            bytes_out=new.bytes_out - old.bytes_out,
            steps=new.steps - old.steps,
            **self._decided(new, old) if self._decides() else {},
        )

    def _decided(self, new: _Total, old: _Total) -> dict[str, Any]:
        taken, counted, dropped = new.taken - old.taken, new.counted - old.counted, new.dropped - old.dropped
        ours, theirs = new.by_rank - old.by_rank, new.dropped_by_rank - old.dropped_by_rank
        ages = sorted(taken.keys() | counted.keys())
        return {
            "taken": [(age, taken[age]) for age in ages],
            "counted": [counted[age] / _MILLION for age in ages],
            "dropped": [(age, dropped[age]) for age in sorted(dropped)],
            "given": [(rank, ours[rank], theirs[rank]) for rank in sorted(ours.keys() | theirs.keys())],
        }


def _bytes_of(message: Message) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in message.tensors)
