"""The memory in which the workers of one host meet on one channel: semaphores, small tensors, and where large ones lie.

Workers are numbered here by their place on the host. Each has a block of its own: semaphores that the others post, and
`SLOTS` slots, of which its sum number k uses number k modulo `SLOTS`. A slot holds what the sum is and, of a small
tensor, its numbers; of a large one the number of the place where it lies, which is told in a message once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.contracts import Message
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.inbox import Waiting
from quorate.wire.real.semaphores import SEMAPHORE_BYTES, Semaphores
from quorate.wire.real.shared import LEAST_BYTES

SLOTS = 4
"""Sums that a worker may have begun before everyone has read the first of them."""
READY, DONE = 0, 1
"""The semaphores of each worker: what it brings to its next sum is there; it has done its part of the next one. Behind
these each has a bell, which rings with each of them, where it is asked for."""
_HEAD_BYTES = 64
_READ_BYTES = 1 << 19
"""Of others: so much is sooner read by every worker than shared out among them, which takes a second hop."""
_AT_ONCE = 1 << 18
"""Bytes of each worker that are added at once: all of them stay in the processor's cache until the sum is written."""
_TRIES = 50
"""Before a wait for a semaphore sleeps: some 30 µs, which is less than waking up takes."""

Bytes = NDArray[np.uint8]
Send = Callable[[Message, int], object]


class WorkerBlock:
    """One worker's block, and what this worker knows of that one."""

    def __init__(self, block: Bytes, size: int) -> None:
        semaphores = (2 * size + 1) * SEMAPHORE_BYTES
        self.semaphores = Semaphores(block[:semaphores])
        slots = block[semaphores : semaphores + SLOTS * (_HEAD_BYTES + small_bytes(size))].reshape(SLOTS, -1)
        self.heads = [slot[:_HEAD_BYTES].view(np.int64) for slot in slots]
        """Of each slot: what the sum is, and the number of the place."""
        self.slots: list[Bytes] = [slot[_HEAD_BYTES:] for slot in slots]
        self.counts = [0, 0]
        """Of its posts that this worker has taken, by kind."""
        self.places: dict[int, Bytes] = {}
        """By number."""


def small_bytes(size: int) -> int:
    """The largest tensor that is small among `size` workers; what is larger is worth a block of its own."""
    return max(LEAST_BYTES, _READ_BYTES // max(1, size - 1) // 64 * 64)


def block_bytes(size: int) -> int:
    """Of one worker's block; memory is only taken by what is used of it."""
    return (2 * size + 1) * SEMAPHORE_BYTES + SLOTS * (_HEAD_BYTES + small_bytes(size))


class SharedSegment:
    """The shared segment of one channel and host. Made without waiting; `is_open` when everyone's block has come.

    Its methods are called by one thread at a time. `ranks` are those of the host's workers, in order.
    """

    def __init__(
        self, endpoint: Endpoint, tag: str, send: Send, ranks: Sequence[int], *, has_bells: bool = False
    ) -> None:
        mailbox = endpoint.mailbox
        assert mailbox is not None
        self._endpoint, self._mailbox, self._tag, self._send = endpoint, mailbox, tag, send
        self.ranks, self._has_bells = list(ranks), has_bells
        self.rank, self.size = self.ranks.index(endpoint.rank), len(self.ranks)
        self.others = [peer for peer in range(self.size) if peer != self.rank]
        block = self.lent(block_bytes(self.size))
        self.own = WorkerBlock(block.numpy(), self.size)
        self.own.semaphores.initialize()
        self._peers: dict[int, WorkerBlock] = {}
        self._told: dict[tuple[int, int], tuple[int, int]] = {}
        """By address and bytes: the number of the place, and the address of its block."""
        self._count = 0
        self._asked = {peer: self._ask(peer) for peer in self.others}
        self._tell(Message((block,), shared=True))

    def lent(self, nbytes: int) -> Tensor:
        """So many bytes (at least `LEAST_BYTES`) that can be shared. Raises `MemoryError`."""
        x = self._mailbox.empty(nbytes, torch.uint8)
        if not self.lends(x):
            raise MemoryError("this process has no address space left for shared memory (ulimit -v)")
        return x

    def lends(self, x: Tensor) -> bool:
        """Whether `x` lies in such memory."""
        return self._mailbox.lends(x.untyped_storage().data_ptr())

    def is_open(self) -> bool:
        """Whether everyone's block is here; never waits."""
        for peer in self.others:
            if peer not in self._peers and self._asked[peer].filled.is_set():
                self._peers[peer] = WorkerBlock(self._next_message(peer).tensors[0].numpy(), self.size)
        return len(self._peers) == self.size - 1

    def _ask(self, peer: int) -> Waiting:
        return self._endpoint.inbox.ask(self.ranks[peer], self._tag, self.ring if self._has_bells else None)

    def _tell(self, message: Message) -> None:
        for peer in self.others:
            self._send(message, self.ranks[peer])

    def missing(self) -> list[int]:
        """Whose block is not."""
        return [peer for peer in self.others if peer not in self._peers]

    def _next_message(self, peer: int) -> Message:
        result = self._asked[peer].result
        assert result is not None
        self._asked[peer] = self._ask(peer)
        return result[1]

    def wait_for_message(self, peer: int, seconds: float) -> None:
        """Until there is one, for at most `seconds`."""
        self._asked[peer].filled.wait(seconds)

    # -- semaphores

    def post(self, kind: int) -> None:
        """Everyone else's."""
        for peer in self.others:
            semaphores = self._peers[peer].semaphores
            semaphores.post(kind * self.size + self.rank)
            if self._has_bells:
                semaphores.post(2 * self.size)

    def ring(self) -> None:
        """This worker's own bell; from any thread."""
        self.own.semaphores.post(2 * self.size)

    def wait_for_bell(self, seconds: float) -> None:
        """Until this worker's has rung since the last call, for at most `seconds`."""
        bell, semaphores = 2 * self.size, self.own.semaphores
        if semaphores.wait(bell, seconds):
            while semaphores.try_wait(bell):
                pass

    def late(self, kind: int, number: int) -> list[int]:
        """Who has not posted that for sum `number` (from 1)."""
        if number < 1:
            return []
        return [peer for peer in self.others if not self._has_posted(peer, kind, number)]

    def _has_posted(self, peer: int, kind: int, number: int) -> bool:
        counts = self._peers[peer].counts
        while counts[kind] < number and self.own.semaphores.try_wait(kind * self.size + peer):
            counts[kind] += 1
        return counts[kind] >= number

    def wait_for_semaphore(self, peer: int, kind: int, seconds: float) -> None:
        """Until `peer` posts it once more, for at most `seconds`."""
        semaphore = kind * self.size + peer
        semaphores, counts = self.own.semaphores, self._peers[peer].counts
        if any(semaphores.try_wait(semaphore) for _ in range(_TRIES)) or semaphores.wait(semaphore, seconds):
            counts[kind] += 1

    # -- what is brought

    def blocks(self) -> list[WorkerBlock]:
        """By rank."""
        return [self.own if rank == self.rank else self._peers[rank] for rank in range(self.size)]

    def show(self, number: int, what: int, place: int) -> None:
        """Say what this worker brings to sum `number`; 0 is the place of what lies in the slot."""
        head = self.own.heads[number % SLOTS]
        head[0], head[1] = what, place

    def place_of(self, x: Tensor) -> int:
        """The number of the place of `x`, which lies in a block; everyone is told of a new one."""
        key = (x.data_ptr(), x.numel() * x.element_size())
        if key not in self._told:
            gone = [old for old, (_, block) in self._told.items() if not self._mailbox.lends(block)]
            forget = [self._told[old][0] for old in gone]
            header = {"place": self._count + 1, "forget": forget}
            self._tell(Message((x.detach().view(-1).view(torch.uint8),), header, shared=True))
            for old in gone:
                del self._told[old]
            self._count += 1
            self._told[key] = (self._count, x.untyped_storage().data_ptr())
        return self._told[key][0]

    def untold(self, number: int) -> list[int]:
        """Whose place for sum `number` has not been told of yet; never waits."""
        found = []
        for peer in self.others:
            theirs = self._peers[peer]
            place = int(theirs.heads[number % SLOTS][1])
            while place and place not in theirs.places and self._asked[peer].filled.is_set():
                told = self._next_message(peer)
                for old in told.header["forget"]:
                    theirs.places.pop(int(old), None)
                theirs.places[int(told.header["place"])] = told.tensors[0].numpy()
            if place and place not in theirs.places:
                found.append(peer)
        return found

    def brought(self, number: int, own: Bytes) -> list[Bytes]:
        """What everyone brings to sum `number`, by rank: the memory itself; `own` is this worker's."""
        slot = number % SLOTS
        found = []
        for one in self.blocks():
            place = int(one.heads[slot][1])
            found.append(own if one is self.own else (one.places[place] if place else one.slots[slot])[: len(own)])
        return found

    def are_alike(self, number: int) -> bool:
        """Whether all mean the same by sum `number`."""
        slot = number % SLOTS
        return len({int(one.heads[slot][0]) for one in self.blocks()}) == 1


def add_up(brought: Sequence[NDArray[np.generic]], into: NDArray[np.generic]) -> None:
    """The sum, in order of rank; `into` may be the first."""
    if len(brought) == 1:
        np.copyto(into, brought[0])
        return
    np.add(brought[0], brought[1], out=into)
    for x in brought[2:]:
        np.add(into, x, out=into)


def slices_at_once(here: slice, itemsize: int) -> Iterator[slice]:
    """`here`, cut into what is added at once."""
    step = max(1, _AT_ONCE // itemsize)
    for first in range(here.start, here.stop, step):
        yield slice(first, min(first + step, here.stop))
