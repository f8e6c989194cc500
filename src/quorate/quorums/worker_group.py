"""Exchanges of one optimizer among workers that step together as one learner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import WireTimeout, ranks_in_words
from quorate.core.fields import Fields
from quorate.core.groups import Group, Leaves, Said
from quorate.core.vectors import Flat, bare_layout, empty_vector, pack
from quorate.observe.digests import digest_of
from quorate.observe.step_times import StepTimer
from quorate.replica.optimizer_state import optimizer_from_other, optimizer_to_plain
from quorate.replica.replica import Replica
from quorate.wire.exchange import sum_in_order
from quorate.wire.survivors import Survivors

_OPERATION = "step of a learner"
_SERVE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Stepped(Fields):
    """The header of the message of one worker in an exchange: the fields of `Said` beside its gradient."""

    said: dict[str, Any]  # open: the header of `Group.exchange`
    unused: list[int]
    weight: float
    leaves: Leaves
    digest: str | None


@dataclass(frozen=True, slots=True)
class CopiedReplica(Fields):
    """The header of a copy of a replica: its tensors are the parameters, `kept` of the optimizer, and others."""

    optimizer: dict[str, Any]  # open: see `optimizer_to_plain`
    kept: int
    state: dict[str, Any]  # open: the header of `Group.copy_replica`


class WorkerGroup:
    """Implements `core.groups.Group`.

    Cost of an exchange among G workers: each sends its gradient to every other, (G - 1) d numbers, and accesses the
    board three times. On one host the numbers lie in shared memory and are not copied.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        replica: Replica,
        wire: Wire,
        timer: StepTimer,
        *,
        write: Callable[[Flat], None],
        serve: Callable[[], None],
    ) -> None:
        """`write` makes a vector this worker's gradient; `serve` is called every 0.5 s while it waits."""
        self.ranks, self._replica, self._timer = tuple(sorted(ranks)), replica, timer
        self._wire, self._write, self._serve = wire.channel("learner"), write, serve
        self._survivors = Survivors(self._wire)
        self._paused_round = self._departures = 0
        """The newest round in which all paused, and how often workers have left the group since."""
        self._is_doubted = False
        self._set_stepping(self.ranks)

    # -- core.groups.Group

    @property
    def others(self) -> frozenset[int]:
        return self._stepping - self._wire.dead - {self._wire.rank}

    @property
    def dead(self) -> frozenset[int]:
        return self._wire.dead.intersection(self.ranks)

    def exchange(
        self, header: Mapping[str, Any], *, weight: float | None = None, leaves: Leaves = ""
    ) -> dict[int, Said]:
        self._timer.arrived()
        if leaves == "ended" and len(self.ranks) > 1:
            self._wire.board.set(self._ended_key(self._wire.rank), json.dumps(self._paused_round).encode())
        digest = self._digest() if self._is_doubted else None
        about: dict[str, Any] = {"weight": 1.0 if weight is None else weight, "leaves": leaves, "digest": digest}
        if not self.others:
            messages = {self._wire.rank: Said(header, **about)}
        else:
            gradient = None if weight is None else self._gradient(weight)
            unused = [] if gradient is None else [i for i, x in enumerate(self._replica.gradients) if x is None]
            stepped = Stepped(dict(header), unused, **about)
            message = Message(() if gradient is None else gradient.parts, stepped.header())
            messages = {rank: self._read(reply) for rank, reply in self._gather(message).items()}
        leaving = [rank for rank, message in messages.items() if message.leaves]
        if leaving:
            self._departures += 1
            self._set_stepping(self._stepping.difference(leaving))
        return messages

    def write_gradient(self, messages: Sequence[Said]) -> None:
        vectors = [message.gradient for message in messages if message.gradient is not None]
        if not vectors:
            return
        with self._timer.spending("decode"):
            total = sum(message.weight for message in messages if message.gradient is not None)
            columns = zip(*(x.parts for x in vectors), strict=True)
            mean = Flat([sum_in_order(column).div_(total) for column in columns], vectors[0].layout)
            unused = frozenset.intersection(*(message.unused for message in messages if message.gradient is not None))
            self._replica.used = [place not in unused for place in range(len(self._replica.trained))]
            for place in unused:
                self._replica.trained[place].grad = None  # this worker may have one, if its replica was different
        self._write(mean)

    def doubt(self) -> None:
        self._is_doubted = True

    def trust(self) -> None:
        self._is_doubted = False

    def copy_replica(
        self, source: int, header: Mapping[str, Any], tensors: Sequence[Tensor], *, takes: bool
    ) -> tuple[Mapping[str, Any], tuple[Tensor, ...]] | None:
        replica, copy = self._replica, Message()
        if source == self._wire.rank:
            about, kept = optimizer_to_plain(replica.optimizer)
            copied = [x.detach().clone() for x in (*replica.every, *kept, *tensors)]
            copy = Message(tuple(copied), CopiedReplica(about, len(kept), dict(header)).header())
        received = self._gather(copy).get(source)
        if received is None:
            return None
        described = CopiedReplica.read(received.header)
        first = len(replica.every)
        last = first + described.kept
        if takes:
            self._adopt(received.tensors[:first], described.optimizer, received.tensors[first:last])
        return described.state, received.tensors[last:]

    def paused(self, number: int) -> None:
        before, self._paused_round, self._departures = self._paused_round, number, 0
        if len(self.ranks) == 1 or before == number:
            return
        board = self._wire.board
        ends = {rank: board.get(self._ended_key(rank)) for rank in self.ranks}
        # A worker that has ended after this pause takes part in one more exchange.
        ended = {rank for rank, end in ends.items() if end is not None and json.loads(end) < number}
        self._set_stepping(set(self.ranks) - ended)
        self.doubt()

    # -- inside

    def _set_stepping(self, ranks: Sequence[int] | set[int] | frozenset[int]) -> None:
        self._stepping = frozenset(ranks)
        era = (self._paused_round * (len(self.ranks) + 1) + self._departures) * self._wire.max_size + self.ranks[0]
        self._survivors.among(self._stepping, era)  # no other group has this number

    def _ended_key(self, rank: int) -> str:
        return f"{self._wire.name}/ended/{rank}"

    def _read(self, message: Message) -> Said:
        stepped = Stepped.read(message.header)
        gradient = Flat(message.tensors, bare_layout(self._replica.layout)) if message.tensors else None
        return Said(stepped.said, gradient, frozenset(stepped.unused), stepped.weight, stepped.leaves, stepped.digest)

    def _gather(self, message: Message) -> dict[int, Message]:
        clock, limit = self._wire.clock, self._wire.timeout
        work, until = self._survivors.gather(message, _OPERATION), clock.now() + limit
        with self._timer.spending("wait"):
            while True:
                try:
                    return work.wait(_SERVE_SECONDS)
                except WireTimeout as error:
                    if clock.now() > until:
                        raise WireTimeout(
                            f"rank {self._wire.rank} waited {limit:g} s for {ranks_in_words(error.ranks)} in a "
                            f"{_OPERATION}",
                            error.ranks,
                        ) from None
                self._serve()

    def _gradient(self, weight: float) -> Flat | None:
        gradients = self._replica.gradients
        if all(x is None for x in gradients):
            return None
        with self._timer.spending("encode"):
            vector = empty_vector(bare_layout(self._replica.layout), self._wire.empty)
            pack(gradients, vector, scale=weight)
        return vector

    def _digest(self) -> str:
        _, kept = optimizer_to_plain(self._replica.optimizer)
        return f"{digest_of([*self._replica.every, *kept]):016x}"

    def _adopt(self, parameters: Sequence[Tensor], about: dict[str, Any], kept: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for p, numbers in zip(self._replica.every, parameters, strict=True):
                p.copy_(numbers)
        optimizer_from_other(self._replica.optimizer, about, [x.clone() for x in kept])


_: type[Group] = WorkerGroup
