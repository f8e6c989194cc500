"""The task of one server: it holds parts of the parameters, receives gradients, and sends parameters.

Or it holds parts of a centre, receives parameters, and sends the centre. `ServerBook` counts the work of the server:
the staleness and weights of gradients, seconds in which it was busy, and bytes in and out.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from quorate.buckets.rows import read
from quorate.core.contracts import Message, Wire
from quorate.core.members import DeathNotice
from quorate.core.servers import ServerTerms
from quorate.core.vectors import bare_layout
from quorate.means.edge_coding import EdgeCoding
from quorate.records.rows import Served
from quorate.replica.replica import Replica
from quorate.servers import messages
from quorate.servers.kept_part import KeptPart, PartPushed
from quorate.servers.order import Decision, Order, Push, Taken
from quorate.servers.setting_out import WANTED, Receiver, WaitingWorkers
from quorate.servers.shard import Centre, Shard, cuts_of
from quorate.servers.succession import KINDS, Holders, NumberedDecision, Succession
from quorate.wire.attendant import Attendant
from quorate.wire.failure import ended, note_server

READ = "parameters"
"""The tag of the answers of servers."""
_SET_OUT = Message(header={"kind": "set out"})
"""Lets the task take the parts that the training thread has handed over."""


@dataclass(frozen=True)
class _Pushed:
    """A push of a worker to this server."""

    message: messages.PushMessage
    parts: Mapping[int, PartPushed]


class ServerTask:
    """The server task of one rank; `wire` is that of its main thread. The first server decides, unless each does."""

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
        """`name` is that of the optimizer, and `coding` encodes the gradients of workers."""
        self._wire, self._terms, self._rank = wire, terms, wire.rank
        self._holders = Holders(terms.servers, terms.replication)
        self._succession = Succession(
            wire.rank, self._holders, lambda message, to: self.send(message, to), is_alone=not terms.consistent
        )
        decides = self._succession.decides
        self.book = ServerBook(wire.rank, name, decides=lambda: self._succession.decides)
        self._order = Order(terms, workers, version, decides=decides)
        self._newest_era = self._newest_ended = 0
        """The newest era of which a message has arrived, and the newest era that has ended."""
        self._pushed: dict[tuple[int, int], _Pushed] = {}
        self._decisions: deque[NumberedDecision] = deque()
        self._early: list[tuple[int, Message]] = []
        self._handed_over = deque[tuple[Mapping[int, Shard | Centre], float]]()
        self._next: tuple[Mapping[int, Shard | Centre], float] | None = None
        """The parts for the next era, and its number."""
        self._newest_with_parts = self._begun = 0.0
        """The newest era for which the parts are here, and the newest that has begun here."""
        self._parts: dict[int, KeptPart] = {}
        self._reading = set[int]()
        """Workers that have yet to read the final parameters of an era. Until then these do not change."""
        self._coding = coding
        self._receiver, self._waiting = receiver, WaitingWorkers(self._answer_start)
        self._error: Exception | None = None
        self.served = Attendant(wire, "server", self._take)
        self.send, self.close = self.served.send, self.served.close

    def check(self) -> None:
        """Raise the error with which the server has ended."""
        if self._error is not None:
            raise self._error

    def hears_of_deaths(self) -> None:
        """Make this server go on without workers and servers that die from now on."""
        self.served.hears_of_deaths()

    def set_out(self, parts: Mapping[int, Shard | Centre], era: int) -> None:
        """Begin an era with these parts."""
        self._handed_over.append((parts, era))
        self.send(_SET_OUT, self._rank)

    def ends(self) -> None:
        """Let the server continue with its parts in all later eras, as its own worker has ended."""
        self._handed_over.append(({}, math.inf))
        self.send(_SET_OUT, self._rank)

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
                    self._wire.send(Message(header=messages.Failed(why).header()), rank, tag)
            raise

    def _take_in(self, source: int, message: Message) -> None:
        header = message.header
        kind = header.get("kind")
        if "gone" in header:
            self._note_deaths(DeathNotice.read(header).ranks)
        elif kind in KINDS:
            for decision in self._succession.receive(source, header):
                self._follow(decision)
        elif kind == "set out":
            self._take_parts(*self._handed_over.popleft())
        else:
            self._take_from_worker(source, messages.read_message(header), message)
        if self._succession.decides and not self._order.decides:
            self._decide(self._order.decide())
        self._go_on()

    def _take_from_worker(self, source: int, fields: messages.FromWorker, message: Message) -> None:
        if isinstance(fields, messages.PartsMessage):
            self._take_parts(self._receiver.parts(fields, message.tensors), fields.era)
            self._waiting.received()
        elif fields.kind == "comes":
            self._waiting.announced(source, is_known=fields.era <= self._newest_with_parts)
        elif fields.kind == "has read":
            self._has_read(source)
        elif fields.era > self._begun or (self._reading and fields.era > self._newest_ended):
            self._early.append((source, message))
        else:
            self._handle(source, fields, message.tensors)

    def _answer_start(self, rank: int, is_wanted: bool) -> None:
        self._wire.send(Message(header=messages.Wanted(is_wanted).header()), rank, WANTED)

    def _take_parts(self, parts: Mapping[int, Shard | Centre], era: float) -> None:
        self._next, self._newest_with_parts = (parts, era), era
        self._begin_era()

    def _begin_era(self) -> None:
        if self._reading:
            return
        if self._next is not None:
            (parts, self._begun), self._next = self._next, None
            if parts:
                self._parts = {part: KeptPart(kept, self._terms, self._coding) for part, kept in parts.items()}
        early, self._early = self._early, []
        for source, message in early:
            self._take_in(source, message)

    def _has_read(self, rank: int) -> None:
        """Note that a worker has read the final parameters of an era, or has died."""
        self._reading.discard(rank)
        self._begin_era()

    def _handle(
        self,
        source: int,
        message: messages.Signal | messages.Attempt | messages.Again | messages.PushMessage,
        tensors: Sequence[Tensor],
    ) -> None:
        is_current = message.era > self._newest_ended
        self._newest_era = max(self._newest_era, message.era)
        match message:
            case messages.PushMessage():
                number, version, count = message.number, message.version, message.count
                self._pushed[source, number] = _Pushed(message, self._decoded(source, message, tensors))
                self._succession.has_read(message.has_read)
                if is_current:  # else it has been decided
                    push = Push(source, number, version, count, message.reads, message.weight)
                    self._decide(self._order.pushed(push))
            case messages.Again():
                self._note_deaths(message.dead)
                self._decide(self._order.asks_again(source, message.number))
            case messages.Attempt("joins"):
                self._decide(self._order.comes(source, message.attempt))
            case messages.Attempt("withdraws"):
                self._decide(self._order.withdraws(source, message.attempt))
            case messages.Signal("read"):
                if is_current or source in self._order.ended:  # a worker that has ended reads when all have
                    self._decide(self._order.asks(source))
            case messages.Signal("pauses" | "ended" as how) if is_current:
                self._decide(self._order.leaves(source, how))

    def _decoded(self, source: int, message: messages.PushMessage, tensors: Sequence[Tensor]) -> dict[int, PartPushed]:
        at, parts = 0, {}
        for part, unused in zip(self._holders.parts_of(self._rank), message.unused, strict=True):
            cut = self._receiver.cut(part)
            count = cut.count if message.has_gradient else 0
            gradient = tensors[at : at + min(count, len(cut.pieces))]
            rows = None
            if cut.tables and count:
                rows = read(tensors[at + count - 1], cut.tables_of(self._receiver.replica))
            if self._coding is not None and count:
                gradient = self._coding.decode(gradient, cut.layout, message.draw, source).parts
            edit_count = len(cut.pieces) if message.has_edit else 0
            edit = tensors[at + count : at + count + edit_count]
            at += count + edit_count
            row_edit = None
            if cut.tables and message.has_row_edit:
                row_edit, at = read(tensors[at], cut.tables_of(self._receiver.replica)), at + 1
            parts[part] = PartPushed(gradient, edit, frozenset(unused), rows, row_edit)
        return parts

    def _note_deaths(self, dead: Sequence[int]) -> None:
        new = [int(rank) for rank in dead if rank not in self._succession.dead]
        self._succession.died(new)
        for rank in new:
            self._decide(self._order.died(rank))
            self._has_read(rank)
        self._waiting.died(new)

    def _decide(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._follow(self._succession.announce(decision, self._newest_era), is_own=True)

    def _follow(self, numbered: NumberedDecision, *, is_own: bool = False) -> None:
        decision = numbered.decision
        self._decisions.append(numbered)
        if not is_own:
            self._order.follow(decision)
        if decision.is_last and not decision.repeats:  # its readers begin the next era together
            self._order, self._newest_ended = self._order.next_era(decision), numbered.era

    def _go_on(self) -> None:
        """Carry out the decisions that can be, in their order."""
        while self._decisions and self._parts and self._decisions[0].era <= self._begun:
            numbered, dead = self._decisions[0], self._succession.dead
            needed = {(x.source, x.number) for x in numbered.decision.taken}.union(numbered.decision.dropped)
            if any(key not in self._pushed and key[0] not in dead for key in needed):
                return
            self._decisions.popleft()
            self._carry_out(numbered)

    def _carry_out(self, numbered: NumberedDecision) -> None:
        decision = numbered.decision
        keys = [(x, (x.source, x.number)) for x in decision.taken]
        taken = [(x, push) for x, key in keys if (push := self._pushed.pop(key, None)) is not None]
        if self._terms.elastic is not None:
            self._answer(numbered)  # the centre before it moves: the worker moves as far the other way
            for x, push in taken:
                for part, kept in self._parts.items():
                    kept.draw(push.parts[part])
                self.book.stepped([x], decision.rate, len(self._order.everyone))
            return
        dropped = [(key[0], push) for key in decision.dropped if (push := self._pushed.pop(key, None)) is not None]
        self.book.dropped(
            (rank, decision.version - push.message.version) for rank, push in dropped if push.message.count
        )
        options_by_push = {(x.source, x.number): push.message.options for x, push in taken}
        for part, kept in self._parts.items():
            kept.write([push.parts[part] for _, push in (*taken, *dropped)])
            if taken:
                options = options_by_push.get(decision.options_of, taken[-1][1].message.options)
                kept.step([(x, push.parts[part]) for x, push in taken], options, decision.rate)
        if taken:
            self.book.stepped([x for x, _ in taken], decision.rate, len(self._order.everyone))
        if decision.readers:
            self._answer(numbered)

    def _answer(self, numbered: NumberedDecision) -> None:
        decision, spoken_for = numbered.decision, self._holders.speaks_for(self._rank, numbered.dead)
        if decision.is_last and not decision.repeats and self._terms.replication > 1:
            self._reading = {reader for reader, _ in decision.readers} - self._succession.dead
        ages = {x.source: x.staleness for x in decision.taken}
        parts: list[messages.PartFields] = []
        kept: list[Tensor] = []
        empty = self._wire.empty
        read = {part: kept.read(decision, empty, is_sent=part in spoken_for) for part, kept in self._parts.items()}
        for part in spoken_for:
            kept_part = self._parts[part]
            states, state_tensors = kept_part.states if decision.is_last else ([], [])
            options, beside = (kept_part.own_options, kept_part.beside) if decision.is_last else (None, None)
            parts.append(messages.PartFields(part, kept_part.count, states, len(state_tensors), options, beside))
            kept += state_tensors
        there, contributors = decision.there, len(decision.taken)
        common = messages.AnswerFields(numbered.index, decision.version, there, parts, contributors, decision.is_whole)
        clocks = dict(decision.joined)
        for reader, number in decision.readers:
            individual = replace(common, number=number, staleness=ages.get(reader), clock=clocks.get(reader))
            sent = [x for part in spoken_for for x in read[part][reader]]
            answer = Message((*sent, *kept), individual.header(), shared=True)
            self._wire.send(answer, reader, READ)
            self.book.answered(reader, answer)


EVERY_SECONDS = 5.0
"""Longest time between two rows while the server works; another row is written at each pause."""


@dataclass
class _Total:
    """Totals since the beginning."""

    busy: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    steps: int = 0
    taken: Counter[int] = field(default_factory=Counter)
    """Number of gradients in steps, by staleness."""
    counted: Counter[int] = field(default_factory=Counter)
    """Weights of these in millionths of an equal share, by staleness."""
    dropped: Counter[int] = field(default_factory=Counter)
    by_rank: Counter[int] = field(default_factory=Counter)
    """Number of gradients in steps, by rank."""
    dropped_by_rank: Counter[int] = field(default_factory=Counter)

    def copy(self) -> _Total:
        """Return a copy with counters of its own, as the server goes on meanwhile."""
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
    """Counts the work of a server, in its task; the training thread reads rows. A step may end in the next row.

    Cost: some 5 µs a gradient; a row, some 100 µs, every `EVERY_SECONDS` and at every pause.
    """

    def __init__(self, rank: int, optimizer: str, *, decides: Callable[[], bool]) -> None:
        """`decides` returns whether this server decides on the order now."""
        self._rank, self._optimizer, self._decides = rank, optimizer, decides
        self._current, self._recorded, self._since = _Total(), _Total(), 0.0

    # -- in the server's task

    def handled(self, source: int, message: Message, seconds: float) -> None:
        """Count a message that was handled in so many seconds."""
        self._current.busy += seconds
        if source != self._rank:
            self._current.bytes_in += _bytes_of(message)

    def answered(self, reader: int, message: Message) -> None:
        """Count an answer."""
        if reader != self._rank:
            self._current.bytes_out += _bytes_of(message)

    def stepped(self, taken: Sequence[Taken], rate: float, everyone: int) -> None:
        """Count a step of these gradients, at the learning rate times `rate`, of `everyone` workers."""
        total = self._current
        total.steps += 1
        if self._decides():
            for gradient in taken:
                total.taken[gradient.staleness] += 1
                total.counted[gradient.staleness] += round(gradient.factor * rate * everyone * _MILLION)
                total.by_rank[gradient.source] += 1

    def dropped(self, gradients: Iterable[tuple[int, int]]) -> None:
        """Count dropped gradients, given as pairs of rank and staleness."""
        if self._decides():
            for rank, staleness in gradients:
                self._current.dropped[staleness] += 1
                self._current.dropped_by_rank[rank] += 1

    # -- in the training thread

    def set_out(self, now: float) -> None:
        """Begin an era, at that time of the clock."""
        self._since = now

    def is_due(self, now: float) -> bool:
        """Whether the next row is due."""
        return now - self._since >= EVERY_SECONDS

    def row(self, now: float) -> Served | None:
        """Return the row of the work since the row before; None if there was none."""
        new, old, since = self._current.copy(), self._recorded, self._since
        self._recorded, self._since = new, now
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
        by_rank, dropped_by_rank = new.by_rank - old.by_rank, new.dropped_by_rank - old.dropped_by_rank
        ranks = sorted(by_rank.keys() | dropped_by_rank.keys())
        ages = sorted(taken.keys() | counted.keys())
        return {
            "taken": [(age, taken[age]) for age in ages],
            "counted": [counted[age] / _MILLION for age in ages],
            "dropped": [(age, dropped[age]) for age in sorted(dropped)],
            "given": [(rank, by_rank[rank], dropped_by_rank[rank]) for rank in ranks],
        }


def _bytes_of(message: Message) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in message.tensors)


_LOOK_SECONDS = 0.1
_ENDED_EVERY = 10
"""Number of looks after which it asks the board whether any worker is left."""


class OwnServer:
    """The separate server of one optimizer; `wire` is that of its workers. Only the layout of `replica` and the class
    of its optimizer are used. `check` raises where a worker called `distribute` with other arguments.

    Cost: memory for the model that the script has built, and for this server's part with its optimizer state.
    """

    def __init__(
        self,
        wire: Wire,
        replica: Replica,
        terms: ServerTerms,
        check: Callable[[Any], None],
        *,
        name: str,
        coding: EdgeCoding | None,
        tolerates_death: bool,
        record: Callable[[Served], None],
    ) -> None:
        """`record` is called with a row of the server's work from time to time."""
        self._wire = wire.channel("servers")
        cuts = cuts_of(bare_layout(replica.layout), len(terms.servers), replica.sparse_tables)
        self._record = record
        receiver = Receiver(replica, lambda part: cuts[part], check)
        self._task = ServerTask(self._wire, terms, range(wire.size), 0, receiver, name=name, coding=coding)
        self._task.book.set_out(wire.clock.now())
        if tolerates_death:
            self._task.hears_of_deaths()
        note_server(wire.board, wire.rank, is_outlived=terms.replication > 1)

    def serve(self) -> None:
        """Return when the training has ended, or no worker is left. Raises the error that ended the task otherwise.

        It polls, and so does not count as a rank that waits for others.
        """
        served, clock, looks = self._task.served, self._wire.clock, 0
        while not served.is_over:
            clock.sleep(_LOOK_SECONDS)
            looks += 1
            if self._task.book.is_due(clock.now()):
                self._record_work()
            if looks % _ENDED_EVERY == 0 and self._have_all_ended() and not served.is_over:
                self._task.close()
        self._record_work()
        served.wait()

    def _record_work(self) -> None:
        row = self._task.book.row(self._wire.clock.now())
        if row is not None:
            self._record(row)

    def _have_all_ended(self) -> bool:
        board, dead = self._wire.board, self._wire.dead
        return all(rank in dead or board.peek(ended(rank)) is not None for rank in range(self._wire.size))
