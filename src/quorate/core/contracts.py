"""The interfaces between the parts of Quorate: work, clock, board and wire.

`Wire` moves tensors and small messages between workers and knows nothing of models. It has two families of
implementation, over real processes and over virtual workers, and one contract suite (tests/contract) holds both
to this description.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quorate.core.errors import ConfigurationError
from quorate.core.members import Members

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Write = Callable[[Sequence["Tensor"]], None]
"""Writes the same numbers to each of the given tensors."""

DEFAULT_TIMEOUT = 600.0
"""Default limit of every wait, in seconds."""


class Work(Protocol[T_co]):
    """An operation under way."""

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once. Never waits."""

    def wait(self, timeout: float | None = None) -> T_co:
        """Return the result, once it is there; a second call returns the same.

        Raises `PeerFailed` within a second of a needed worker's death (a collective needs all workers of its wire).
        Raises `WireTimeout` after `timeout` seconds (None: the wire's own), naming the ranks waited for. Raises
        `Mismatch` where workers called different operations.
        """


class Clock(Protocol):
    """The time of the workers of one world: wall-clock or virtual."""

    def now(self) -> float:
        """Return seconds since a moment: equal for all workers of a virtual world, arbitrary in the real one."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass for this worker."""

    def pause(self) -> None:
        """Let another worker run (virtual); do nothing in the real world."""

    def compute(self, share: float) -> None:
        """Let `share` (0 to 1) of the modelled compute time of one training step pass (virtual).

        Does nothing in the real world.
        """


class Board(ABC):
    """Small messages that all workers can read: a dictionary of bytes, with compare-and-set.

    All methods are safe from any thread. Keys are deleted when done with.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Write `value`, and replace an earlier one."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the value of `key`; None where nothing is written. Never waits."""

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return `get` of each key; a single request where the board is in another process."""
        return [self.get(key) for key in keys]

    def peek(self, key: str) -> bytes | None:
        """Read the local copy of the board, which may lack the newest writes. For frequent reads."""
        return self.get(key)

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return `peek` of each key; a single request where the board is in another process."""
        return [self.peek(key) for key in keys]

    @abstractmethod
    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter (a missing one is 0) and return the new value. Counters share no key with `set`."""

    @abstractmethod
    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Write `value` if the key holds `expected` (None: nothing is written); True for the one winner."""

    @abstractmethod
    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        """Wait until every key is written. Raises `WireTimeout` naming the missing ones; else as `Work.wait`."""

    @abstractmethod
    def delete(self, prefix: str) -> None:
        """Delete every key that starts with `prefix`."""


@dataclass(frozen=True)
class Message:
    """Tensors, and a header of plain JSON values, that one worker sends to another."""

    tensors: tuple[Tensor, ...] = ()
    header: Mapping[str, Any] = field(default_factory=dict)
    shared: bool = False
    """Neither side changes the tensors any more, even after the work is done: on one host, and in a message to
    oneself, both may read the same memory."""
    urgent: bool = False
    """A message without tensors that may overtake earlier ones, even of its tag. Between hosts it does, so that it does
    not wait behind large messages."""


@dataclass(frozen=True)
class Common:
    """Memory that several workers of one host read and write at once, without any ordering."""

    memory: Tensor
    """The bytes (uint8)."""
    invitation: Message
    """Lets another worker of the host find the same memory (`Wire.find_common`), as long as this one lives."""


class Done(Generic[T]):
    """A finished work."""

    def __init__(self, value: T) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> T:
        return self._value


class Wire(ABC):
    """The connection of one worker to the others.

    Every worker of a wire calls the same collectives in the same order. A wire belongs to one thread (asserted):
    another thread takes a `channel` of its own, and may only `send` on this one. The tensors of a collective or a send
    are not touched until its work is done. A collective is under way once it is called, even if nobody waits.
    Wrong arguments (a rank that does not exist, too few pieces) raise `ConfigurationError`.
    """

    rank: int
    size: int
    board: Board
    clock: Clock
    timeout: float
    name: str

    @property
    def members(self) -> Members:
        """The workers, as far as this one knows; none has died or joined before `tolerate_deaths`. Raises as
        `Work.wait`."""
        return Members(self.size)

    @property
    def dead(self) -> frozenset[int]:
        """Ranks that have died, where the others go on. Raises as `Work.wait`."""
        return self.members.dead

    @property
    def max_size(self) -> int:
        """Largest number of workers of the whole run: workers that join it take the ranks from `size` on, each once."""
        return self.size

    @property
    def is_newcomer(self) -> bool:
        """Whether this worker has joined since the start."""
        return self.rank >= self.size

    @property
    def joined(self) -> frozenset[int]:
        """Ranks that have joined since the start. Raises as `Work.wait`."""
        return self.members.joined

    @property
    def alive(self) -> list[int]:
        """Ranks of the living workers, in order. Raises as `Work.wait`."""
        return list(self.members.alive)

    def host_of(self, rank: int) -> int:
        """Return the lowest rank on the host of `rank`; 0 for all where there is one host."""
        return 0

    def enter(self) -> None:
        """Let this worker, which has joined, train with the others: from now on `joined` contains it on all workers."""
        raise ConfigurationError("workers cannot join this wire")

    @abstractmethod
    def tolerate_deaths(self, tag: str) -> None:
        """Let this worker go on when others die, if the board says that all workers do (`wire.failure`).

        `dead` then has the ranks of the dead workers, and messages to them are lost without an error. A message with
        the header of a `core.members.DeathNotice` arrives under `tag`, from this worker itself. A wait that needs a
        dead worker still raises.
        """

    @abstractmethod
    def channel(self, name: str) -> Wire:
        """Return a wire among the same workers with an order of its own; every worker passes the same `name`."""

    @abstractmethod
    def group(self, members: Sequence[int]) -> Wire:
        """Return a wire among `members` (ranks of this wire), ranked by their place in the list, over send and receive.

        Only the members call it; this worker is one of them. Two groups with equal members share their order.
        """

    def use_device(self, device: torch.device) -> None:
        """Let all threads of this worker use `device`, on which a model lies; the first call decides."""
        return

    def connect(self, device: torch.device) -> None:
        """Make the connections for collectives on `device` now; every worker calls it.

        Otherwise the first collective that needs them makes them, and waits until every worker has called it.
        """
        return

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        """Sum `x` over all workers in place, and return it; the same bits on all workers.

        Numbers are added on each host in order of rank, then in order of the hosts' lowest ranks; smaller floats in
        float32, rounded before they are sent to other hosts. Backends of torch, as for GPUs, have their own order.
        """

    def all_reduce_narrow(self, x: Tensor) -> Work[Tensor]:
        """Sum `x` as `all_reduce` does; a backend of torch adds smaller floats in their own dtype, and sends half."""
        return self.all_reduce(x)

    @abstractmethod
    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        """Return the sum over all workers of piece `rank` of `x.flatten().tensor_split(size)`, added as above."""

    @abstractmethod
    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        """Return every worker's tensor, by rank. Shapes may differ, dtypes may not. `shared`: see `Message.shared`."""

    @abstractmethod
    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        """Write this worker's piece (`wire.cut.piece`) into every worker's `x`, a contiguous vector (n) of equal length
        on all workers, and return `x`. `write` is called once, by this call or by `done` or `wait` of its work. It gets
        the tensors to write: on one host this worker's pieces of all workers' `x`, which `all_to_all_single` shows;
        else a tensor to be sent."""

    @abstractmethod
    def all_to_all(
        self, pieces: Sequence[Tensor], *, shared: bool = False, shapes: Sequence[Sequence[int]] | None = None
    ) -> Work[list[Tensor]]:
        """Send `pieces[r]` to rank r; return the pieces received, by rank. Shapes may differ. `shared`: see
        `Message.shared`. `shapes`: those of the pieces received, if this worker knows them."""

    @abstractmethod
    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        """Return this worker's piece (`wire.cut.piece`) of every worker's `x`, by rank; `x` is a contiguous vector (n),
        equally long on all workers. On one host the pieces may lie in the others' memory. No worker changes more of `x`
        than its own piece before all have finished reading, as they have at the end of an `all_gather_into`.
        """

    @abstractmethod
    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        """Copy `x` of `root` into every worker's `x` (equal shape and dtype), and return it."""

    @abstractmethod
    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        """Sum `x` over all workers into `x` at `root`; on other workers its numbers are undefined afterwards."""

    @abstractmethod
    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        """Return every worker's tensor, by rank (shapes may differ), at `root`; None elsewhere."""

    @abstractmethod
    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        """Return piece `rank` of the `pieces` of `root` (None elsewhere). Shapes and dtypes may differ."""

    @abstractmethod
    def tell_all(self, operation: str, value: Any) -> Work[list[Any]]:
        """Return every worker's `value`, which is JSON, by rank. Between processes no tensors are sent, and each raises
        `Mismatch` if workers' `operation` is not equal."""

    @abstractmethod
    def barrier(self) -> Work[None]:
        """Done when every worker has called it."""

    @abstractmethod
    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        """Send `message` to rank `to`, without waiting for it. Messages of one (sender, receiver, tag) arrive in order,
        but for urgent ones. A worker that sends to itself receives a copy."""

    @abstractmethod
    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        """Return the next message from `source` (None: any worker) under `tag`, and the rank of its sender.

        A receive whose wait timed out stays posted, and may be waited for again. A receive from any worker does not
        fail when one ends. Where workers outlive each other, the death of one of `needs` ends a receive as the death
        of its source does, unless the message is there.
        """

    def sums_on(self, device: torch.device) -> bool:
        """Whether tensors on `device` are summed there, so that no thread need wait for their sums."""
        return False

    def on_host(self, x: Tensor, into: Tensor | None = None) -> Work[Tensor]:
        """Copy `x` to the CPU, by default into new memory, behind the current work of its device.

        The wait for the copy ends as one for a collective.
        """
        return Done(x.detach().to("cpu") if into is None else into.copy_(x.detach()))

    def tell_of_host(self, device: torch.device) -> None:
        """Note that tensors on `device` are summed in the memory of the hosts, which a real wire says once."""
        return

    def carries(self, x: Tensor) -> bool:
        """Whether collectives move tensors such as `x` from device to device, without the memory of the hosts."""
        return False

    def exchange(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], tag: str
    ) -> Work[list[Tensor]]:
        """Send tensors to ranks, and return those received, of other ranks: in the tensors of `receives`, or like them.

        Both sides of two ranks call exchanges in one order, with the same shapes and dtypes.
        Raises `ConfigurationError` where workers are virtual.
        """
        raise ConfigurationError("virtual workers exchange messages only")

    @abstractmethod
    def empty(self, numel: int, dtype: torch.dtype, *, patience: float = 0.0) -> Tensor:
        """Return an uninitialized tensor (numel,) on the CPU, in memory that sums and shared messages need not copy.

        Any thread may call it. Where memory of this size exists but is still read, it waits at most `patience` seconds
        for the readers before it allocates more."""

    def trim(self) -> None:
        """Release the memory of tensors made by `empty` that nobody holds; otherwise it is kept for the next ones."""
        return

    def lend(self, x: Tensor) -> dict[str, Any] | None:
        """Return JSON by which other workers of this host can `borrow` the memory of a contiguous `x`, of `empty` or of
        a shared message; None where they cannot. This worker holds it as long as they use it."""
        return None

    def borrow(self, loan: Mapping[str, Any], *, copy_of: Tensor | None = None) -> Tensor:
        """Return the memory that a worker of this host lends, as bytes (uint8) to read and to write. Raises
        `ConfigurationError` where it cannot be reached. With `copy_of`, the tensor that this worker lends itself, it is
        a copy. Its pages are copied when they are written to, and it holds the tensor."""
        raise ConfigurationError("the workers of this wire lend no memory")

    def make_common(self, nbytes: int) -> Common:
        """Return new memory, all zeros, for this worker and those of its host that it invites. It exists until the last
        of them has released it, or ended. Raises `ConfigurationError` where the system has no such memory."""
        raise ConfigurationError("the workers of this wire have no memory in common")

    def find_common(self, invitation: Message) -> Common:
        """Return the memory of another worker's invitation. Raises `ConfigurationError` where it cannot be reached."""
        raise ConfigurationError("the workers of this wire have no memory in common")

    @abstractmethod
    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        """Run `task` beside this worker, on `channel(name)`; `wait` raises its exceptions."""

    @abstractmethod
    def crash(self) -> None:
        """End this worker at once, without a message to others (fault injection)."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of this wire, without waiting for other workers."""
