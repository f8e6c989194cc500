"""The interfaces by which the parts of Quorate know each other.

`Wire` moves tensors and small messages between workers and knows nothing of models. It has two families of
implementation, over real processes and over virtual workers, and one contract suite (tests/contract) holds both
to what is written here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quorate.core.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T_co = TypeVar("T_co", covariant=True)

Write = Callable[[Sequence["Tensor"]], None]
"""Writes the same numbers to each of these tensors."""

DEFAULT_TIMEOUT = 600.0
"""Seconds any wait lasts at most by default."""


class Work(Protocol[T_co]):
    """A thing under way."""

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once. Never waits."""

    def wait(self, timeout: float | None = None) -> T_co:
        """The result, once it is there; asking again returns the same.

        Raises `PeerFailed` within a second of a needed worker's death (a collective needs all workers of its wire),
        `WireTimeout` after `timeout` seconds (None: the wire's own), naming the ranks waited for, and `Mismatch` where
        workers called different things.
        """


class Clock(Protocol):
    """Time as the workers of one world see it: the wall clock, or the virtual one."""

    def now(self) -> float:
        """Seconds since a moment that is the same for all workers of a virtual world, arbitrary in the real one."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass for this worker."""

    def pause(self) -> None:
        """Another worker may run here (virtual); nothing in the real world."""

    def compute(self, share: float) -> None:
        """Let `share` (0 to 1) of the modelled compute time of one training step pass (virtual).

        Nothing in the real world, where computing takes the time it takes.
        """


class Board(ABC):
    """Small messages that all workers can read: a dictionary of bytes, with compare-and-set.

    All methods are safe from any thread. Keys are deleted when done with.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Write, whatever was there."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Read; None where nothing is written. Never waits."""

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read each of them; one question if the board is elsewhere."""
        return [self.get(key) for key in keys]

    def peek(self, key: str) -> bytes | None:
        """Read what is known here: a value written a moment ago may be missing. For frequent questions."""
        return self.get(key)

    @abstractmethod
    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter (a missing one is 0) and return the new value. Counters share no key with `set`."""

    @abstractmethod
    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Write `value` if the key holds `expected` (None: nothing is written); True for the one winner."""

    @abstractmethod
    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        """Return when every key is written. Raises `WireTimeout` naming the missing ones; else as `Work.wait`."""

    @abstractmethod
    def delete(self, prefix: str) -> None:
        """Delete every key that starts with `prefix`."""


@dataclass(frozen=True)
class Message:
    """A message from one worker to another: tensors, and a header of plain JSON values."""

    tensors: tuple[Tensor, ...] = ()
    header: Mapping[str, Any] = field(default_factory=dict)
    shared: bool = False
    """Neither side changes the tensors any more, also after the work is done: on one host, and in a message to
    oneself, both may then look at the same memory."""
    urgent: bool = False
    """Without tensors: it may overtake what was sent before it, also under its tag. Between hosts it does, so that it
    does not wait for large messages to get through."""


@dataclass(frozen=True)
class Common:
    """Memory that several workers of one host read and write at once; nothing orders what they do there."""

    memory: Tensor
    """Its bytes."""
    invitation: Message
    """With it another worker of the host finds the same memory (`Wire.find_common`), as long as this one lives."""


class Wire(ABC):
    """How one worker reaches the others.

    Every worker of a wire calls the same collectives in the same order. A wire belongs to one thread (asserted):
    another thread takes a `channel` of its own, and may only `send` on this one. Tensors given to a collective or a
    send are not touched by the caller until its work is done. Nothing is launched late: a collective called is under
    way, whoever waits first.
    Wrong arguments (a rank that does not exist, too few pieces) raise `ConfigurationError`.
    """

    rank: int
    size: int
    board: Board
    clock: Clock
    timeout: float
    name: str

    @property
    def dead(self) -> frozenset[int]:
        """The ranks that have died, where the others go on; empty before `tolerate_deaths`. Raises as `Work.wait`."""
        return frozenset()

    @property
    def max_size(self) -> int:
        """How many workers there may ever be: those that join a run have the ranks from `size` on, each once."""
        return self.size

    @property
    def is_newcomer(self) -> bool:
        """Whether this worker was not there at the start."""
        return self.rank >= self.size

    @property
    def joined(self) -> frozenset[int]:
        """The ranks that have joined since the start; as `gone`."""
        return frozenset()

    @property
    def alive(self) -> list[int]:
        """The ranks that there are now, as far as this worker knows, in order."""
        return sorted({*range(self.size), *self.joined} - self.dead)

    def host_of(self, rank: int) -> int:
        """The lowest rank on the host of `rank`, which is there or has joined; 0 for all where there is one host."""
        return 0

    def enter(self) -> None:
        """This worker, which has joined, is one of those that train: `came` has it, everywhere, from now on."""
        raise ConfigurationError("workers cannot join this wire")

    @abstractmethod
    def tolerate_deaths(self, tag: str) -> None:
        """From now on this worker goes on when others die, if the board says that all do (`wire.failure`).

        `gone` has those ranks, what is sent to them is lost without an error, and a message with the header
        `{"gone": [rank, ...]}` comes under `tag`, from this worker itself. Waits that need one of them still raise.
        """

    @abstractmethod
    def channel(self, name: str) -> Wire:
        """An ordering domain of its own among the same workers; the same name on every worker."""

    @abstractmethod
    def group(self, members: Sequence[int]) -> Wire:
        """A wire among `members` only (ranks of this wire), ranked by their place in the list, over send and receive.

        Known to its members only; this worker is one of them. Two groups with equal members share their order.
        """

    def connect(self, device: torch.device) -> None:
        """Make the connections for collectives on `device` now; every worker calls it.

        Otherwise they are made with the first collective that needs them, which then waits for everyone to call it.
        """
        return

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        """The sum over all workers, written into `x` itself, which is returned; the same bits everywhere.

        Added on each host in order of rank, then in order of the hosts' lowest ranks; smaller floats in float32, and
        rounded before they go to other hosts. A backend of torch's, as for GPUs, has an order of its own.
        """

    @abstractmethod
    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        """The sum over all workers of piece `rank` of `x.flatten().tensor_split(size)`, added as there."""

    @abstractmethod
    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        """Every worker's tensor, by rank. Ragged: shapes may differ, dtypes may not. `shared`: see `Message.shared`."""

    @abstractmethod
    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        """Each worker writes its piece (`wire.cut.piece`) of everyone's `x`, a contiguous vector (n) of one length
        everywhere, which is returned. `write` gets, once, where to: on one host this worker's pieces of everyone's `x`,
        which `all_to_all_single` shows; else a tensor to be sent. It is called by who launches this, asks or waits."""

    @abstractmethod
    def all_to_all(self, pieces: Sequence[Tensor], *, shared: bool = False) -> Work[list[Tensor]]:
        """Send `pieces[r]` to rank r; returns what each rank sent here, by rank. Ragged. `shared`: see
        `Message.shared`."""

    @abstractmethod
    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        """This worker's piece (`wire.cut.piece`) of everyone's `x`, a contiguous vector (n) of one length everywhere,
        by rank. On one host these may lie in the memory of the others. Nobody changes `x` but for its own piece,
        before everyone has said that it is done with the others': as by the end of an `all_gather_into`."""

    @abstractmethod
    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        """`x` of `root`, written into everyone's `x` (equal shape and dtype), which is returned."""

    @abstractmethod
    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        """The sum, written into `x` at `root`; elsewhere `x` holds nothing of meaning afterwards."""

    @abstractmethod
    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        """At `root`: every worker's tensor, by rank (ragged). Elsewhere None."""

    @abstractmethod
    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        """Piece `rank` of what `root` gave (`pieces` is None elsewhere). Ragged: shape and dtype come with it."""

    @abstractmethod
    def barrier(self) -> Work[None]:
        """Done when every worker has called it."""

    @abstractmethod
    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        """Never waits for the receiver. First in, first out per (sender, receiver, tag), but for urgent messages. To
        oneself: a copy."""

    @abstractmethod
    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        """The next message from `source` (None: from anyone) under `tag`, and who sent it.

        A receive whose wait timed out stays asked for, and may be waited for again. A receive from anyone needs no
        worker in particular, so it is not ended by one that has ended. Where workers outlive each other, the death of
        one of `needs` ends a receive as the death of its source does, unless the message is there.
        """

    @abstractmethod
    def empty(self, numel: int, dtype: torch.dtype, *, patience: float = 0.0) -> Tensor:
        """A tensor (numel,) on the CPU, of numbers without meaning, in memory from which sums and shared messages
        need no copying; from any thread. Where memory of this size is there, but others still read it, they are waited
        for, for at most `patience` seconds, before more is taken."""

    def trim(self) -> None:
        """Give back the memory of tensors made by `empty` that nobody holds; else it is kept for the next ones."""
        return

    def make_common(self, nbytes: int) -> Common:
        """New memory, all zeros, for this worker and those of its host that it invites. It is there until the last of
        them has let go of it, or ended. Raises `ConfigurationError` where the system has no such memory."""
        raise ConfigurationError("the workers of this wire have no memory in common")

    def find_common(self, invitation: Message) -> Common:
        """The memory of another worker, which invites to it. Raises `ConfigurationError` where it cannot be reached."""
        raise ConfigurationError("the workers of this wire have no memory in common")

    @abstractmethod
    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        """Run `task` beside this worker, on `channel(name)`; what it raises is raised by `wait`."""

    @abstractmethod
    def crash(self) -> None:
        """End this worker here and now, without a word to anyone (fault injection)."""

    @abstractmethod
    def close(self) -> None:
        """Release what this wire holds; the other workers are not waited for."""
