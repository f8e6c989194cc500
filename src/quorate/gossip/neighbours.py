"""Exchanges of one optimizer along the edges of a graph, and its questions to single workers.

A task beside the training thread answers the questions of other workers, also while the thread computes.
"""

from __future__ import annotations

import math
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.core.fields import Fields, Header
from quorate.core.neighbours import Answer, Neighbours, NeighbourShare, Request, SentVector, Written
from quorate.core.telling import tell
from quorate.core.topology import Edge
from quorate.core.vectors import Flat, Layout, bare_layout, empty_vector, in_layout
from quorate.gossip import exchanges
from quorate.means.edge_coding import EdgeCoding
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer, Timed
from quorate.replica.replica import Replica
from quorate.wire.attendant import Attendant
from quorate.wire.survivors import DeathTolerance, Survivors
from quorate.wire.work import Together


@dataclass(frozen=True, slots=True)
class AtPause(Fields):
    """The message of a survivor to all others at a pause."""

    round: int  # its newest exchange
    mass: float
    balances: Sequence[tuple[int, float]]  # see `MassLedger.balances`
    dead: Sequence[int]


@dataclass(frozen=True)
class AmongNeighbours:
    """Functions of the worker that exchanges with neighbours call."""

    members: Callable[[], Collection[int]]
    """Returns all ranks so far: those of the start and the newcomers, the dead among them."""
    mass: Callable[[], float]
    """Returns the weight of its replica in the mean of all workers."""
    weighs: Callable[[], bool]
    """Returns whether replicas have different weights, by push-sum weights that travel."""
    drain: Callable[[], None]
    """Drains its strategy: nothing of it is in flight afterwards."""


class NeighbourExchange:
    """Implements `core.neighbours.Neighbours` for one worker, over channels of its wire.

    Cost of an exchange: one message of all parameters along each edge; on one host the parameters lie in shared
    memory, and are not copied for each receiver. A pause costs a small message to every other worker and one from each,
    so that nothing is in flight then. In a run that outlives deaths, workers exchange as much again at each pause to
    agree on the newest exchange.
    """

    def __init__(
        self,
        wire: Wire,
        timer: StepTimer,
        replica: Replica,
        tolerance: DeathTolerance,
        losses: Losses,
        worker: AmongNeighbours,
        *,
        is_gossip: bool,
        codec: EdgeCoding | None = None,
    ) -> None:
        self.rank, self.size = wire.rank, wire.size
        self.round = -1
        self.has_moments = False
        self.codec = codec
        self.lock = threading.Lock()
        self._worker_wire, self._timer, self._replica, self._tolerance = wire, timer, replica, tolerance
        self._losses, self._worker = losses, worker
        self._incoming: dict[int, exchanges.Incoming] = {}
        self.answers: Answers | None = None
        self._has_ended = self._is_away = False
        self._is_used = is_gossip
        self._late: list[NeighbourShare] = []
        """Contributions sent to this worker in exchanges that it took no part in, up to the newest pause of all."""
        self._pauses = -1 if wire.is_newcomer else 0
        self._hosts: tuple[str, ...] | None = None
        self.ledger = exchanges.MassLedger()
        self.lost = 0.0
        """Weight sent to this worker and lost in transit, up to the newest pause of all."""
        self.lost_with: dict[int, float] = {}
        """Weight lost with each dead rank: its own, and the weight in flight to and from it. Updated at each pause."""
        self._mass_at_pause = defaultdict[int, float](lambda: 1.0)
        """Mass of each rank at the newest pause of all; 1 for one that has joined since."""

    @cached_property
    def _wire(self) -> Wire:
        self.open()
        return self._worker_wire.channel("neighbours")

    def _layout(self) -> Layout:
        """Return the layout of a contribution: that of the replica without the header that means carry."""
        return bare_layout(self._replica.layout_with(moments=self.has_moments))

    def _read(self, source: int, contribution: exchanges.Contribution, tensors: Sequence[Tensor]) -> Flat:
        """Return the vector in a message, decoded if a codec has written it."""
        layout = self._layout()
        if self.codec is None or not contribution.is_written:
            return in_layout(Flat(tensors, layout), layout)
        with self._timer.spending("decode"):
            return self.codec.decode(tensors, layout, contribution.round, source)

    # -- core.neighbours.Neighbours

    @cached_property
    def _members(self) -> exchanges.GraphMembers:
        return exchanges.GraphMembers(self._wire)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._worker.members()))

    @property
    def dead(self) -> frozenset[int]:
        """The dead, with those that neighbours have agreed on before this worker has read of their death."""
        return self._wire.dead.union(self.lost_with) if self.lost_with else self._wire.dead

    def members(self) -> tuple[int, ...]:
        return self._members.of(self.round + 1)

    def open(self) -> None:
        self._is_used = True

    @property
    def some_paused(self) -> bool:
        """Whether a worker that sends to this one has paused, as far as this one knows."""
        return any(other.is_away and not other.has_ended for other in self._incoming.values())

    def blank(self) -> Flat:
        return empty_vector(self._layout(), self._wire.empty)

    def written(self, x: Flat) -> Written:
        if self.codec is None:
            return exchanges.Encoded(x, x.parts)
        number = self.round + 1
        with self._timer.spending("encode"):
            tensors = self.codec.encode(x, number, self.rank)
            return exchanges.Encoded(self.codec.decode(tensors, x.layout, number, self.rank), tensors)

    def hosts(self) -> tuple[str, ...]:
        if self._hosts is None:  # not cached_property, whose lock all workers of a process may share: hosts_of waits
            self._hosts = hosts_of(self._worker_wire)
        return self._hosts

    def exchange(
        self,
        x: SentVector | Mapping[int, SentVector],
        to: Sequence[Edge],
        source: Sequence[Edge],
        *,
        scalars: Sequence[float] = (),
    ) -> exchanges.StartedExchange:
        if self._is_away:
            raise ConfigurationError(
                "this worker has called finish() on an optimizer, which ended the exchanges of all workers"
            )
        self._timer.arrived()
        self.round += 1
        kept, dead = 0.0, self.dead
        for peer, weight in to:
            if peer == self.rank or peer in dead or self._incoming_from(peer).poll():
                kept += weight
            else:
                gift = x[peer] if isinstance(x, Mapping) else x
                contribution = exchanges.as_received(gift, weight, scalars, self.round)
                message = exchanges.message_of(gift, contribution, before=self.ledger.sent[peer])
                self.ledger.sent[peer] += exchanges.mass_of(contribution)
                self._wire.send(message, peer, exchanges.TAG)
        own_gift = x.get(self.rank) if isinstance(x, Mapping) else x
        own = None if own_gift is None else exchanges.as_received(own_gift, kept, scalars, self.round)
        others = {peer: self._incoming_from(peer) for peer, _ in source if peer != self.rank}
        return exchanges.StartedExchange(self.rank, own, others, self.round, self._timer)

    def late(self) -> list[NeighbourShare]:
        before, self._late = self._late, []
        return before + [late for _, other in sorted(self._incoming.items()) for late in other.late(self.round)]

    def ask(self, peer: int, name: str, x: Flat | None = None, **header: Any) -> Work[Answer]:
        self._timer.arrived()
        self.resume()
        return Timed(self._task().ask(peer, name, x, header, self._pauses), self._timer)

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        self._task().serve(name, handler)

    # -- for the worker

    def joins(self, at: tuple[int, int]) -> None:
        """Go on from `at`, the `position` of the worker whose replica this worker has copied."""
        self.round, self._pauses = at
        self.resume()

    @property
    def position(self) -> tuple[int, int]:
        """The number of the newest exchange and the number of pauses of all; see `joins`."""
        return self.round, self._pauses

    def resume(self) -> None:
        """Answer the questions of all workers: this worker computes again, or has ended."""
        if self.answers is not None:
            self.answers.resume(math.inf if self._has_ended else self._pauses)

    def go_away(self, *, ended: bool) -> None:
        """Tell all others, once, that this worker begins no exchange until the pause of all, or ever, if `ended`."""
        if not self._is_used or self._is_away:
            return
        self._worker.drain()
        self._is_away, self._has_ended = True, ended
        self.resume()
        for peer in self.ranks:
            if peer != self.rank:
                fields = exchanges.Away("ended" if ended else "pauses", self.round, self.ledger.sent[peer])
                self._wire.send(Message(header=fields.header()), peer, exchanges.TAG)

    def quiesce(self) -> None:
        """Wait until nothing is in flight, after all have paused or ended; `late` returns what arrived too late."""
        if not self._is_used:
            return
        late: list[NeighbourShare] = []
        others = {peer: self._incoming_from(peer) for peer in self.ranks if peer != self.rank}
        for other in others.values():
            late += other.drain(ended=self._has_ended)
        survivors = self._tolerance.survivors
        if survivors is None:
            self.round = max(self.round, *(other.reached for other in others.values()), -1)
        else:
            self._agree_with(survivors, others, late)
        for other in others.values():
            other.resume()
        self._report_losses()
        self._is_away = self._has_ended
        self._pauses += 1
        self._late = late

    def close(self) -> None:
        """End the task that answers questions; no worker asks any more."""
        if self.answers is not None:
            self.answers.close()
            self.answers = None

    # -- inside

    def _agree_with(
        self, survivors: Survivors, others: Mapping[int, exchanges.Incoming], late: Sequence[NeighbourShare]
    ) -> None:
        """Set `round` to the newest exchange of all survivors, and count the weight lost with the dead."""
        mass = self._worker.mass() + sum(exchanges.mass_of(contribution) for contribution in late)
        dead_peers = [peer for peer, other in others.items() if other.is_dead]
        fields = AtPause(self.round, mass, list(self.ledger.balances().items()), dead_peers)
        messages = survivors.gather(Message(header=fields.header()), "rest").wait()
        states = {rank: AtPause.read(message.header) for rank, message in messages.items()}
        self.round = max(state.round for state in states.values())
        dead = set(self.ranks).difference(states).union(*(state.dead for state in states.values()))
        balances = [dict(state.balances) for rank, state in states.items() if rank not in dead]
        for rank in sorted(dead.difference(self.lost_with)):
            self.lost_with[rank] = exchanges.weight_of_the_dead([rank], self._mass_at_pause, balances)
            self.ledger.lost.pop(rank, None)
            if self._worker.weighs() and self._losses.is_first:
                tell(
                    f"quorate: with rank {rank}, which has died, a weight of {self.lost_with[rank]:.3g} was lost; the "
                    "mean is over what remains\n"
                )
        self._mass_at_pause.update({rank: state.mass for rank, state in states.items()})

    def _incoming_from(self, peer: int) -> exchanges.Incoming:
        if peer not in self._incoming:
            self._incoming[peer] = exchanges.Incoming(self._wire, peer, self._read, self.ledger)
        return self._incoming[peer]

    def _report_losses(self) -> None:
        """Report the weight that has not arrived by the pause of all, and begin a new ledger."""
        for peer, mass in sorted(self.ledger.lost.items()):
            if mass > 0:
                tell(
                    f"quorate: of what rank {peer} gave to rank {self.rank}, a weight of {mass:.3g} was lost on the "
                    "way; the mean is over what remains\n"
                )
        self.lost += sum(self.ledger.lost.values())
        self.ledger = exchanges.MassLedger()
        for other in self._incoming.values():
            other.ledger = self.ledger

    def _task(self) -> Answers:
        if self.answers is None:
            self.answers = Answers(self._wire, self._layout, self._pauses)
        return self.answers


def hosts_of(wire: Wire) -> tuple[str, ...]:
    """Return the host name of every worker, by rank; every worker of the start calls this at the same place."""
    name = socket.gethostname() or "?"
    if wire.is_newcomer:  # only a run on one host is joined
        return (name,) * wire.max_size
    encoded = wire.all_gather(torch.frombuffer(bytearray(name.encode()), dtype=torch.uint8)).wait()
    names = [bytes(x.tolist()).decode() for x in encoded]
    return (*names, *names[:1] * (wire.max_size - wire.size))


_: type[Neighbours] = NeighbourExchange


@dataclass(frozen=True, slots=True)
class QuestionFields(Fields):
    """The message with a question; the header of its answer is open, as the strategy that answers has made it."""

    name: str
    sequence: int
    about: Mapping[str, Any]  # open: the header that the asking strategy has made
    pauses: int  # the pauses of all so far, on the asking worker

    def header(self) -> dict[str, Any]:
        return {"name": self.name, "sequence": self.sequence, "header": self.about, "pauses": self.pauses}

    @classmethod
    def read(cls, header: Header, **others: Any) -> QuestionFields:
        return cls(header["name"], header["sequence"], header["header"], header["pauses"])


@dataclass(frozen=True)
class Question(Request):
    """A request, and the name under which an answer to it is served."""

    name: str


class Answers:
    """Questions of this worker, and its answers to the questions of others.

    The training thread uses `wire`; the task runs on `wire.channel("questions")`, and sends answers on `wire`. A
    question under a name that is not served yet waits until it is. `pauses` is the number of pauses of all so far; -1
    for a worker that has not joined yet. A request of a worker that has gone on after a pause waits until this worker
    goes on too. So the vectors that this worker keeps do not change during the pause.
    """

    def __init__(self, wire: Wire, layout: Callable[[], Layout], pauses: int) -> None:
        self._wire, self._layout = wire, layout
        self._sequence = 0
        self._handlers: dict[str, Callable[[Request], None]] = {}
        self._unserved: list[Question] = []
        self._early: list[tuple[float, Question]] = []
        self._pauses: float = pauses
        self._newest: dict[int, int] = {}
        self._lock = threading.Lock()
        self._questions = Attendant(wire, "questions", self._receive_question)

    def ask(self, peer: int, name: str, x: Flat | None, header: Mapping[str, Any], pauses: int) -> Work[Answer]:
        """See `core.neighbours.Neighbours`; `pauses` counts pauses of all. Raises the error that has ended the task."""
        self._questions.check()
        self._sequence += 1
        question = QuestionFields(name, self._sequence, dict(header), pauses)
        self._questions.send(_message(x, question.header()), peer)
        answer = PendingAnswer(self._wire, peer, self._wire.receive(peer, f"answer/{self._sequence}"))

        def read_answer(results: list[tuple[int, Message]]) -> Answer:
            message = results[0][1]
            return self._vector(message), message.header

        return Together([answer], read_answer, self._wire.clock)

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        """Let `handler` answer questions under `name`; it answers those that have already been asked at once."""
        with self._lock:
            self._handlers[name] = handler
            waiting = [request for request in self._unserved if request.name == name]
            self._unserved = [request for request in self._unserved if request.name != name]
        for request in waiting:
            handler(request)

    def resume(self, pauses: float) -> None:
        """Go on after `pauses` pauses of all: answer the questions of workers that have gone on before."""
        if pauses <= self._pauses:
            return
        with self._lock:
            self._pauses = pauses
            ready = [request for after, request in self._early if after <= pauses]
            self._early = [(after, request) for after, request in self._early if after > pauses]
        for request in ready:
            self._answer(request)

    def close(self) -> None:
        """End the task; raises the error that has ended it before."""
        self._questions.close()

    # -- the task

    def _receive_question(self, source: int, message: Message) -> None:
        question = QuestionFields.read(message.header)
        if question.sequence <= self._newest.get(source, 0):
            return  # it was received twice
        self._newest[source] = question.sequence
        reply = partial(self._reply, source, question.sequence)
        request = Question(self._vector(message), question.about, reply, question.name)
        with self._lock:
            is_early = question.pauses > self._pauses
            if is_early:
                self._early.append((question.pauses, request))
        if not is_early:
            self._answer(request)

    def _answer(self, request: Question) -> None:
        with self._lock:
            handler = self._handlers.get(request.name)
            if handler is None:
                self._unserved.append(request)
        if handler is not None:
            handler(request)

    def _reply(self, source: int, sequence: int, x: Flat | None = None, **header: Any) -> None:
        self._wire.send(_message(x, header), source, f"answer/{sequence}")

    def _vector(self, message: Message) -> Flat | None:
        layout = self._layout()
        return in_layout(Flat(message.tensors, layout), layout) if message.tensors else None


class PendingAnswer:
    """A `core.contracts.Work` whose result is a message of `peer`, or an empty one if the run goes on without it."""

    def __init__(self, wire: Wire, peer: int, work: Work[tuple[int, Message]]) -> None:
        self._wire, self._peer, self._work = wire, peer, work

    def done(self) -> bool:
        return self._work.done() or self._peer in self._wire.dead

    def wait(self, timeout: float | None = None) -> tuple[int, Message]:
        if self._peer in self._wire.dead and not self._work.done():
            return self._peer, Message()  # at once: the wire reports a death only after a while
        try:
            return self._work.wait(timeout)
        except PeerFailed:
            if self._peer not in self._wire.dead:
                raise
            return self._peer, Message()


def _message(x: Flat | None, header: Mapping[str, Any]) -> Message:
    return Message(() if x is None else x.parts, header, shared=True)
