"""A wire among some of the workers, made of send and receive of their parent; the same in both worlds.

Large tensors are summed by messages in two exchanges: pieces to their owners, and the owners' sums to all. Workers may
wait for their sums in any order, or for something else first. So a task, which lives while sums are under way, begins
the second exchange in place of the waiting worker. Otherwise two workers that wait for different sums would wait for
ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.core.members import DeathNotice, Members
from quorate.wire.cut import WHOLE_BYTES
from quorate.wire.exchange import CollectivesByMessages, assembled, describe, patiently, pieces_of
from quorate.wire.swap import Envelope, Swap
from quorate.wire.work import Together

_groups: WeakKeyDictionary[Wire, dict[tuple[int, ...], itertools.count[int]]] = WeakKeyDictionary()


class GroupWire(CollectivesByMessages):
    """`members` of `parent` (its ranks), ranked by their place in the list.

    Only its members make it. Groups of the same parent with equal members share their order of collectives. Ranks
    in errors are the parent's. Raises `ConfigurationError` for members that are doubled or unknown, and without this
    worker.
    """

    def __init__(
        self,
        parent: Wire,
        members: Sequence[int],
        units: Sequence[Collection[int]] | None = None,
        size: int | None = None,
    ) -> None:
        """`units`: the ranks of each member, which counts as dead once any of them is, and as joined once all of them
        are; None: its own rank. `size`: the number of members that start (None: all)."""
        super().__init__()
        self.ranks, self.units, self._there = tuple(members), units, size
        most = parent.size if size is None else parent.max_size
        if len(set(self.ranks)) != len(self.ranks) or not set(self.ranks) <= set(range(most)):
            raise ConfigurationError(
                f"members {list(members)} of a group must be different ranks between 0 and {most - 1}"
            )
        if parent.rank not in self.ranks:
            raise ConfigurationError(
                f"rank {parent.rank} is not among the members {list(members)} of the group it asked for"
            )
        self.parent = parent
        self.rank, self.size = self.ranks.index(parent.rank), len(self.ranks) if size is None else size
        self.board, self.clock, self.timeout = parent.board, parent.clock, parent.timeout
        self.name = f"{parent.name}[{','.join(map(str, self.ranks))}]"
        self._seen: tuple[Members | None, Members] = None, Members(self.size)
        """The newest members of the parent, and this group among them."""
        self._calls = _groups.setdefault(parent, {}).setdefault(self.ranks, itertools.count())

    @property
    def members(self) -> Members:
        world, (seen, members) = self.parent.members, self._seen
        if world is not seen:
            self._seen = world, members = world, self._of(world)
        return members

    def _of(self, world: Members) -> Members:
        """Return the members of this group among the parent's."""
        units = [(rank,) for rank in self.ranks] if self.units is None else self.units
        return world.of_units(units, self.size)

    @property
    def max_size(self) -> int:
        return len(self.ranks)

    @property
    def shares_memory(self) -> bool:
        return not isinstance(self.parent, CollectivesByMessages) or self.parent.shares_memory

    def use_device(self, device: torch.device) -> None:
        self.parent.use_device(device)

    def enter(self) -> None:
        self.parent.enter()

    def host_of(self, rank: int) -> int:
        host = self.parent.host_of(self.ranks[rank])
        return next(place for place, member in enumerate(self.ranks) if self.parent.host_of(member) == host)

    def tolerate_deaths(self, tag: str) -> None:
        if self.units is None:
            raise ConfigurationError("only a whole world can tolerate the death of a worker, not a group alone")
        self.parent.tolerate_deaths(self._tag(tag))

    def channel(self, name: str) -> Wire:
        return self._again(self.parent.channel(name))

    def _again(self, parent: Wire) -> GroupWire:
        return GroupWire(parent, self.ranks, self.units, self._there)

    def group(self, members: Sequence[int]) -> Wire:
        units = None if self.units is None else [self.units[member] for member in members]
        return GroupWire(self.parent, [self.ranks[member] for member in members], units)

    def on_host(self, x: Tensor, into: Tensor | None = None) -> Work[Tensor]:
        return self.parent.on_host(x, into)

    def _tag(self, tag: str) -> str:
        return f"group/{','.join(map(str, self.ranks))}/{tag}"

    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        return self.parent.send(message, self.ranks[to], self._tag(tag))

    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        theirs = [self.ranks[member] for member in needs]
        work = self.parent.receive(None if source is None else self.ranks[source], self._tag(tag), theirs)

        def ours(results: list[tuple[int, Message]]) -> tuple[int, Message]:
            sender, message = results[0]
            if sender == self.parent.rank and "gone" in message.header:
                deaths = Members(0, dead=frozenset(DeathNotice.read(message.header).ranks))
                message = Message(header=DeathNotice(sorted(self._of(deaths).dead)).header())
            return self.ranks.index(sender), message

        return Together([work], ours, self.clock)

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        """Sum in two halves, 2 (P - 1) / P of `x` sent; a small tensor in a single exchange, P - 1 times `x` sent."""
        if self.size <= 2 or x.nbytes <= WHOLE_BYTES or not x.is_contiguous():
            return super().all_reduce(x)
        operation, flat = f"all_reduce {describe(x)}", x.detach().view(-1)
        pieces = [Message((view,), shared=True) for view in pieces_of(flat, self.size)]
        first = self._swap(operation, pieces, self._sum)

        def combine(messages: list[Message]) -> Tensor:
            assembled(flat, [message.tensors[0].to(x.device) for message in messages])
            return x

        total = SumInHalves(self, first, operation, f"collective/{next(self._calls)}", combine)
        self._turns.add(lambda channel: total.pass_on())
        return total

    def empty(self, numel: int, dtype: torch.dtype, *, patience: float = 0.0) -> Tensor:
        return self.parent.empty(numel, dtype, patience=patience)

    def trim(self) -> None:
        self.parent.trim()

    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        return self.parent.spawn(lambda wire: task(self._again(wire)), name)

    def crash(self) -> None:
        self.parent.crash()

    def close(self) -> None:
        """Do nothing: the parent owns all resources."""


class SumInHalves:
    """One sum under way: the `first` exchange (a `Swap`) results in this worker's piece, and `combine` joins all
    pieces. `tag` is used for nothing else."""

    def __init__(
        self, wire: Wire, first: Work[Tensor], operation: str, tag: str, combine: Callable[[list[Message]], Tensor]
    ) -> None:
        assert isinstance(first, Swap)
        self._wire, self._first, self._operation, self._tag, self._combine = wire, first, operation, tag, combine
        self._others = [peer for peer in range(wire.size) if peer != wire.rank]
        self._mine = wire.receive(wire.rank, tag, self._others)
        self._receives = [wire.receive(peer, tag, self._others) for peer in self._others]
        self._second: Swap[Tensor] | None = None
        self._error: Exception | None = None

    def pass_on(self) -> None:
        """Form this worker's piece, in the task, once the others' have arrived, without a limit of time. `wait` has the
        limit, and raises the error."""
        try:
            summed = patiently(self._first)
            if summed.device.type == "cpu":  # so that it is not copied for each receiver
                summed = self._wire.empty(summed.numel(), summed.dtype).copy_(summed)
            message = Message((summed,), Envelope(self._operation).header(), shared=True)
            for peer in (*self._others, self._wire.rank):
                self._wire.send(message, peer, self._tag)
        except Exception as error:
            self._error = error
            self._wire.send(Message(), self._wire.rank, self._tag)

    def done(self) -> bool:
        if self._second is not None:
            return self._second.done()
        return self._mine.done() and (self._error is not None or all(work.done() for work in self._receives))

    def wait(self, timeout: float | None = None) -> Tensor:
        clock, limit = self._wire.clock, self._wire.timeout if timeout is None else timeout
        deadline = clock.now() + limit
        if self._second is None:
            try:
                _, own = self._mine.wait(limit)
            except WireTimeout:
                raise self._first.too_late(limit) from None
            if self._error is not None:
                raise self._error
            self._second = Swap(self._wire, self._operation, self._others, self._receives, [], own, self._combine)
        return self._second.wait(max(0.0, deadline - clock.now()))
