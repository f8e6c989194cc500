"""The task that keeps a part of the parameters for all workers: gradients come, parameters go. Or a part of a centre:
parameters come, and it goes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.agreement.attendant import Attendant
from quorate.agreement.edge_coding import EdgeCoding
from quorate.agreement.served_codes import PullCodes
from quorate.agreement.server_book import ServerBook
from quorate.agreement.setting_out import WANTED, Coming, Receiver
from quorate.core.contracts import Message, Wire
from quorate.core.servers import ServerTerms
from quorate.replica.centre import Centre
from quorate.replica.late_gradients import Corrections
from quorate.replica.shard import Cut, Shard
from quorate.servers.order import Decision, Order, Push, Taken

READ = "parameters"
"""The tag under which a server answers."""


@dataclass(frozen=True)
class _Pushed:
    """What a worker has pushed to this server."""

    version: int
    """Of the parameters that the gradient is of."""
    count: int
    """Of how many steps it is; 0 where there is none."""
    gradient: Sequence[Tensor]
    """Or its parameters, to which a centre is drawn."""
    edit: Sequence[Tensor]
    options: Sequence[dict[str, Any]]
    unused: frozenset[int]
    """Parameters, by their places among the cut's, for which there is no gradient."""


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
        self._orders = not terms.consistent or terms.servers[0] == wire.rank
        self.book = ServerBook(wire.rank, name, decides=self._orders)
        """What it has done."""
        self._order = Order(terms, workers, len(workers), version)
        self._pushed: dict[tuple[int, int], _Pushed] = {}
        self._decisions: deque[Decision] = deque()
        self._dead = set[int]()
        self._early: list[tuple[int, Message]] = []
        self._set_out: float = 0
        self._shard: Shard | Centre | None = None
        self._corrections: Corrections | None = None
        self._coding = coding
        self._pulls: PullCodes | None = None
        self._receiver, self._coming = receiver, Coming(self._tell)
        self.served = Attendant(wire, "server", self._take)
        self._error: Exception | None = None
        self.send, self.close = self.served.send, self.served.close

    def check(self) -> None:
        """Raise what the server has ended with."""
        if self._error is not None:
            raise self._error

    def hears_of_deaths(self) -> None:
        """From now on this server goes on without who has died."""
        self.served.hears_of_deaths()

    def set_out(self, shard: Shard | Centre, stretch: int) -> None:
        """All set out (again), for the `stretch`-th time: this is what the server keeps."""
        self._next = shard, stretch
        self.send(Message(header={"kind": "set out"}), self._rank)

    def ends(self) -> None:
        """This worker was to set out, and does not: its server goes on with what it keeps, whenever the others do."""
        self.send(Message(header={"kind": "set out", "always": True}), self._rank)

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
        if "gone" in header:
            for rank in header["gone"]:
                self._dies(int(rank))
            self._coming.died(header["gone"])
        elif header["kind"] == "set out":
            self._sets_out(always=header.get("always", False))
        elif header["kind"] == "comes":
            self._coming.came(source, is_known=header["stretch"] <= self._set_out)
        elif header["kind"] == "part":
            self._next = self._receiver.part(message), header["stretch"]
            self._sets_out()
            self._coming.gave()
        elif header["stretch"] > self._set_out:
            self._early.append((source, message))
        else:
            self._handle(source, message)
        self._go_on()

    def _tell(self, rank: int, is_wanted: bool) -> None:
        self._wire.send(Message(header={"wanted": is_wanted}), rank, WANTED)

    def _sets_out(self, *, always: bool = False) -> None:
        if always:
            self._set_out = math.inf
        else:
            self._shard, self._set_out = self._next
            if isinstance(self._shard, Shard):
                self._corrections = Corrections(self._terms, self._shard)
                if self._coding is not None and self._terms.pulls == "coded":
                    self._pulls = PullCodes(self._coding, self._shard.cut, self._shard.copied())
        early, self._early = self._early, []
        for source, message in early:
            self._take_in(source, message)

    def _handle(self, source: int, message: Message) -> None:
        header, order = message.header, self._order
        kind = header["kind"]
        if kind == "decision":
            self._decisions.append(_decision(header))
        elif kind == "push":
            number = int(header["number"])
            count = len(self._cut.pieces) if header["has gradient"] else 0
            gradient, edit = self._decoded(source, message, count), message.tensors[count:]
            version, of, unused = int(header["version"]), int(header["count"]), frozenset(header["unused"])
            self._pushed[source, number] = _Pushed(version, of, gradient, edit, header["options"], unused)
            if self._orders:
                push = Push(source, number, version, of, bool(header["reads"]))
                self._decide(order.came(push))
        elif kind == "read":
            self._decide(order.asks(source))
        else:
            self._decide(order.leaves(source, kind))

    def _decoded(self, source: int, message: Message, count: int) -> Sequence[Tensor]:
        if self._coding is None or not count:
            return message.tensors[:count]
        return self._coding.decode(message.tensors[:count], self._cut.layout, int(message.header["draw"]), source).parts

    @property
    def _cut(self) -> Cut:
        assert self._shard is not None, "pushes wait until all have set out"
        return self._shard.cut

    def _dies(self, rank: int) -> None:
        if rank not in self._dead:
            self._dead.add(rank)
            if self._orders:
                self._decide(self._order.died(rank))

    def _decide(self, decisions: Sequence[Decision]) -> None:
        for one in decisions:
            self._decisions.append(one)
            if self._terms.consistent:
                told = {"kind": "decision", "stretch": 0, **asdict(one)}
                for server in self._terms.servers:
                    if server != self._rank:
                        self.send(Message(header=told), server)
            if one.is_last:  # those that have rested set out together
                self._order = Order(self._terms, one.there, self._order.everyone, one.version, self._order.ended)

    def _go_on(self) -> None:
        """Carry out the decisions that can be, in their order."""
        while self._decisions and self._shard is not None:
            one = self._decisions[0]
            needed = {(x.source, x.number) for x in one.taken}.union(one.dropped)
            if any(key not in self._pushed and key[0] not in self._dead for key in needed):
                return
            self._decisions.popleft()
            self._carry_out(one)

    def _carry_out(self, one: Decision) -> None:
        shard = self._shard
        assert shard is not None
        taken = [(x, push) for x in one.taken if (push := self._pushed.pop((x.source, x.number), None)) is not None]
        if isinstance(shard, Centre):
            self._answer(shard, one)  # where it was before: the worker goes as far the other way
            for x, push in taken:
                shard.draw(push.gradient, self._terms.elastic or 0.0)
                self.book.stepped([x], one.rate, self._order.everyone)
            return
        dropped = [(key[0], push) for key in one.dropped if (push := self._pushed.pop(key, None)) is not None]
        for _, push in (*taken, *dropped):
            if push.edit:
                shard.write(push.edit)
        self.book.dropped((rank, one.version - push.version) for rank, push in dropped if push.count)
        if taken:
            self._step(shard, one, taken)
            self.book.stepped([x for x, _ in taken], one.rate, self._order.everyone)
        if one.readers:
            self._answer(shard, one)

    def _step(self, shard: Shard, one: Decision, taken: Sequence[tuple[Taken, _Pushed]]) -> None:
        corrections = self._corrections
        assert corrections is not None
        total = [torch.zeros_like(x) for x in taken[0][1].gradient]
        for x, push in taken:
            gradient = corrections.corrected(x.source, push.gradient)
            for there, numbers in zip(total, gradient, strict=True):
                there.add_(numbers, alpha=x.factor)
        unused = frozenset.intersection(*(push.unused for _, push in taken))
        known = {(x.source, x.number): push.options for x, push in taken}
        options = known.get(one.options_of, taken[-1][1].options)
        used = [place not in unused for place in range(len(shard.cut.places))]
        shard.step(total, options, one.rate, used)
        corrections.stepped()

    def _answer(self, shard: Shard | Centre, one: Decision) -> None:
        numbers: Sequence[Tensor] = shard.copied(self._wire.empty)
        ages = {x.source: x.staleness for x in one.taken}
        dropped = {source for source, _ in one.dropped}
        states: list[Any] = []
        kept: list[Tensor] = []
        if one.is_last and isinstance(shard, Shard):
            states, kept = shard.states
        for reader in one.readers:
            sent, has = numbers, numbers
            if self._pulls is not None and not one.is_last:
                sent, has = self._pulls.code(reader, numbers, one.version)
            about: dict[str, Any] = {"version": one.version, "states": states, "numbers": len(numbers)}
            about |= {"there": one.there}
            about |= {"staleness": ages.get(reader), "dropped": reader in dropped, "contributors": len(one.taken)}
            answer = Message((*sent, *kept), about, shared=True)
            self._wire.send(answer, reader, READ)
            self.book.answered(reader, answer)
            if self._corrections is not None:
                self._corrections.read(reader, has)


def _decision(header: Mapping[str, Any]) -> Decision:
    return Decision(
        version=int(header["version"]),
        taken=tuple(Taken(**one) for one in header["taken"]),
        rate=float(header["rate"]),
        dropped=tuple((source, number) for source, number in header["dropped"]),
        readers=tuple(header["readers"]),
        options_of=(header["options_of"][0], header["options_of"][1]),
        is_last=bool(header["is_last"]),
        there=tuple(header["there"]),
    )
