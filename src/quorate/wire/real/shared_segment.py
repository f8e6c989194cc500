"""The shared memory of one channel and host: semaphores, small tensors, and the places of large ones.

Workers are numbered here by their place on the host. Each has a block of its own: semaphores that the others post, and
`SLOTS` slots; its sum number k uses slot k modulo `SLOTS`. A slot holds the operation of the sum and the numbers of a
small tensor. For a large one it holds the number of its place, which is sent in a message once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.contracts import Message
from quorate.wire.boxes import Waiting
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.semaphores import SEMAPHORE_BYTES, Semaphores
from quorate.wire.real.shared import LEAST_BYTES, Mapped

SLOTS = 4
"""Sums that a worker may have begun before all workers have read the first of them."""
READY, DONE = 0, 1
"""The semaphores of each worker: its numbers for its next sum are there; it has done its part of the next sum. Behind
these each has a bell, which rings with each of them, where bells are used."""
_HEAD_BYTES = 64
_READ_BYTES = 1 << 19
"""Bytes that every worker reads from all others sooner than a second hop, after shared additions, takes."""
_AT_ONCE = 1 << 18
"""Bytes of each worker added at once: they stay in the processor's cache until the sum is written."""
_TRIES = 50
"""Tries before a wait for a semaphore sleeps: some 30 µs, less than waking up takes."""

Bytes = NDArray[np.uint8]
Send = Callable[[Message, int], object]


class WorkerBlock:
    """One worker's block, and this worker's counts and places for it."""

    def __init__(self, block: Bytes, size: int) -> None:
        semaphores = (2 * size + 1) * SEMAPHORE_BYTES
        self.semaphores = Semaphores(block[:semaphores])
        slots = block[semaphores : semaphores + SLOTS * (_HEAD_BYTES + small_bytes(size))].reshape(SLOTS, -1)
        self.heads = [slot[:_HEAD_BYTES].view(np.int64) for slot in slots]
        """Head of each slot: the operation of the sum, and the number of the place."""
        self.slots: list[Bytes] = [slot[_HEAD_BYTES:] for slot in slots]
        self.counts = [0, 0]
        """Posts of the worker that this one has taken, by kind."""
        self.places: dict[int, Bytes] = {}
        """Places by number."""


@dataclass
class Place:
    """The place of a large tensor of this worker: its number, and the address of its block."""

    number: int
    address: int
    mapped: Mapped | None
    """Lets the block be used again although others have the place; None if they may hold it."""

    def let_others_hold(self) -> None:
        """Let the block be used again only once the others have forgotten the place."""
        if self.mapped is not None:
            self.mapped.end()
            self.mapped = None


def small_bytes(size: int) -> int:
    """Return the bytes of the largest small tensor among `size` workers; larger ones get a block of their own."""
    return max(LEAST_BYTES, _READ_BYTES // max(1, size - 1) // 64 * 64)


def block_bytes(size: int) -> int:
    """Return the bytes of one worker's block; only the used part takes memory."""
    return (2 * size + 1) * SEMAPHORE_BYTES + SLOTS * (_HEAD_BYTES + small_bytes(size))


class SharedSegment:
    """The shared segment of one channel and host. Made without waiting; `is_open` once all blocks have arrived.

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
        self._places: dict[tuple[int, int], Place] = {}
        """The places of this worker's tensors, by address and bytes."""
        self._count = 0
        self._asked = {peer: self._ask(peer) for peer in self.others}
        self._tell(Message((block,), shared=True))

    def lent(self, nbytes: int) -> Tensor:
        """Return `nbytes` (at least `LEAST_BYTES`) of shared memory. Raises `MemoryError`."""
        x = self._mailbox.empty(nbytes, torch.uint8)
        if not self.lends(x):
            raise MemoryError("this process has no address space left for shared memory (ulimit -v)")
        return x

    def lends(self, x: Tensor) -> bool:
        """Whether `x` lies in shared memory."""
        return self._mailbox.lends(x.untyped_storage().data_ptr())

    def is_open(self) -> bool:
        """Whether all blocks have arrived; never waits."""
        for peer in self.others:
            if peer not in self._peers and self._asked[peer].filled.is_open:
                self._peers[peer] = WorkerBlock(self._next_message(peer).tensors[0].numpy(), self.size)
        return len(self._peers) == self.size - 1

    def _ask(self, peer: int) -> Waiting:
        return self._endpoint.inbox.ask(self.ranks[peer], self._tag, self.ring if self._has_bells else None)

    def _tell(self, message: Message) -> None:
        for peer in self.others:
            self._send(message, self.ranks[peer])

    def missing(self) -> list[int]:
        """Return the workers whose blocks have not arrived."""
        return [peer for peer in self.others if peer not in self._peers]

    def _next_message(self, peer: int) -> Message:
        result = self._asked[peer].result
        assert result is not None
        self._asked[peer] = self._ask(peer)
        return result[1]

    def wait_for_message(self, peer: int, seconds: float) -> None:
        """Wait at most `seconds` for a message of `peer`."""
        self._asked[peer].filled.wait(seconds)

    # -- semaphores

    def post(self, kind: int) -> None:
        """Post the semaphore of this `kind` at all others."""
        for peer in self.others:
            semaphores = self._peers[peer].semaphores
            semaphores.post(kind * self.size + self.rank)
            if self._has_bells:
                semaphores.post(2 * self.size)

    def ring(self) -> None:
        """Ring this worker's own bell; from any thread."""
        self.own.semaphores.post(2 * self.size)

    def wait_for_bell(self, seconds: float) -> None:
        """Wait at most `seconds` until this worker's bell has rung since the last call."""
        bell, semaphores = 2 * self.size, self.own.semaphores
        if semaphores.wait(bell, seconds):
            while semaphores.try_wait(bell):
                pass

    def late(self, kind: int, number: int) -> list[int]:
        """Return the workers that have not posted `kind` for sum `number` (from 1)."""
        if number < 1:
            return []
        return [peer for peer in self.others if not self._has_posted(peer, kind, number)]

    def _has_posted(self, peer: int, kind: int, number: int) -> bool:
        counts = self._peers[peer].counts
        while counts[kind] < number and self.own.semaphores.try_wait(kind * self.size + peer):
            counts[kind] += 1
        return counts[kind] >= number

    def wait_for_semaphore(self, peer: int, kind: int, seconds: float) -> None:
        """Wait at most `seconds` until `peer` posts `kind` once more."""
        semaphore = kind * self.size + peer
        semaphores, counts = self.own.semaphores, self._peers[peer].counts
        if any(semaphores.try_wait(semaphore) for _ in range(_TRIES)) or semaphores.wait(semaphore, seconds):
            counts[kind] += 1

    # -- inputs of sums

    def blocks(self) -> list[WorkerBlock]:
        """Return all blocks, by rank."""
        return [self.own if rank == self.rank else self._peers[rank] for rank in range(self.size)]

    def show(self, number: int, operation: int, place: int) -> None:
        """Announce this worker's input to sum `number`; place 0 is the slot itself."""
        head = self.own.heads[number % SLOTS]
        head[0], head[1] = operation, place

    def place_of(self, x: Tensor, *, is_looked_at: bool = False) -> int:
        """Return the number of the place of `x`, which lies in a block; a new one is sent to all.

        The block may be used again as soon as this worker has released it, unless others look at it (`is_looked_at`)
        longer than the sum lasts here.
        """
        key, address = (x.data_ptr(), x.numel() * x.element_size()), x.untyped_storage().data_ptr()
        if key not in self._places:
            released = [old for old, place in self._places.items() if not self._mailbox.lends(place.address)]
            forget = [self._places[old].number for old in released]
            header = {"place": self._count + 1, "forget": forget}
            self._tell(Message((x.detach().view(-1).view(torch.uint8),), header, shared=True))
            for old in released:
                self._places.pop(old).let_others_hold()
            self._count += 1
            mapped = self._mailbox.let_map(address, [self.ranks[peer] for peer in self.others])
            self._places[key] = Place(self._count, address, mapped)
        if is_looked_at:
            self._places[key].let_others_hold()
        return self._places[key].number

    def untold(self, number: int) -> list[int]:
        """Return the workers whose place for sum `number` has not arrived; never waits."""
        silent = []
        for peer in self.others:
            theirs = self._peers[peer]
            place = int(theirs.heads[number % SLOTS][1])
            while place and place not in theirs.places and self._asked[peer].filled.is_open:
                message = self._next_message(peer)
                for old in message.header["forget"]:
                    theirs.places.pop(int(old), None)
                theirs.places[int(message.header["place"])] = message.tensors[0].numpy()
            if place and place not in theirs.places:
                silent.append(peer)
        return silent

    def brought(self, number: int, own: Bytes) -> list[Bytes]:
        """Return the inputs of sum `number`, by rank: the memory itself; `own` is this worker's."""
        slot = number % SLOTS
        inputs = []
        for block in self.blocks():
            place = int(block.heads[slot][1])
            if block is self.own:
                inputs.append(own)
            else:
                inputs.append((block.places[place] if place else block.slots[slot])[: len(own)])
        return inputs

    def are_alike(self, number: int) -> bool:
        """Whether all workers announce the same operation as sum `number`."""
        slot = number % SLOTS
        return len({int(block.heads[slot][0]) for block in self.blocks()}) == 1


def add_up(brought: Sequence[NDArray[np.generic]], into: NDArray[np.generic]) -> None:
    """Write the sum, in order of rank, into `into`, which may be the first array."""
    if len(brought) == 1:
        np.copyto(into, brought[0])
        return
    np.add(brought[0], brought[1], out=into)
    for x in brought[2:]:
        np.add(into, x, out=into)


def slices_at_once(here: slice, itemsize: int) -> Iterator[slice]:
    """Yield the slices of `here` that are added at once."""
    step = max(1, _AT_ONCE // itemsize)
    for first in range(here.start, here.stop, step):
        yield slice(first, min(first + step, here.stop))
