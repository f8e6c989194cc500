"""The wire of one virtual worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from quorate.core.contracts import Board, Clock, Common, Message, Wire, Work, Write
from quorate.core.errors import ConfigurationError
from quorate.core.members import Members
from quorate.wire.exchange import assembled, piece_written, pieces_of
from quorate.wire.failure import report_coming
from quorate.wire.virtual.formation import Inputs
from quorate.wire.virtual.rendezvous import Call
from quorate.wire.virtual.scheduler import Strand
from quorate.wire.virtual.stage import Stage
from quorate.wire.work import Together

ROOT_NAME = "world"


@dataclass
class Channels:
    """The channels of one worker, by name, and the number of collectives launched on each."""

    wires: dict[str, VirtualWire] = field(default_factory=dict)
    launched: dict[str, int] = field(default_factory=dict)


class VirtualWire(Wire):
    """See `Wire`. Collectives are formed centrally, when the last worker calls, at the cost of the network model."""

    def __init__(self, stage: Stage, rank: int, clock: Clock, name: str = ROOT_NAME, channels: Channels | None = None):
        self.rank = rank
        self.size = stage.size
        self.board: Board = stage.board
        self.clock = clock
        self.timeout = stage.timeout
        self.name = name
        self._stage = stage
        self._owner: Strand | None = None
        self._channels = Channels() if channels is None else channels
        self._channels.wires[name] = self

    def sums_on(self, device: torch.device) -> bool:
        return device.type != "cpu"

    @property
    def members(self) -> Members:
        return self._stage.members

    @property
    def max_size(self) -> int:
        """Number of workers, with those that may join."""
        return len(self._stage.lives)

    @property
    def generator_seeds(self) -> tuple[int, int] | None:
        """The seed of all workers' generators, and one of this worker's own; None without generators."""
        return self._stage.generator_seeds(self.rank)

    def host_of(self, rank: int) -> int:
        return self._stage.network.host_of(rank)

    def enter(self) -> None:
        report_coming(self.board, self.rank)

    def tolerate_deaths(self, tag: str) -> None:
        self._stage.followers.append((self.name, self.rank, tag))

    def channel(self, name: str) -> Wire:
        """Return the channel `name`, the same object for the same name."""
        whole_name = f"{self.name}/{name}"
        existing = self._channels.wires.get(whole_name)
        return existing or VirtualWire(self._stage, self.rank, self.clock, whole_name, self._channels)

    def group(self, members: Sequence[int]) -> Wire:
        from quorate.wire.group import GroupWire

        return cast(Wire, GroupWire(self, members))

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        return self._launch(_alike("all_reduce", x), (x,))

    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        return self._launch(_alike("reduce_scatter", x), (x,))

    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        return self._launch(Call("all_gather", dtypes=(x.dtype,)), (x,))

    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        work = self.all_gather(piece_written(self, x, write))
        return Together([work], lambda results: assembled(x, results[0]), self.clock)

    def all_to_all(
        self, pieces: Sequence[Tensor], *, shared: bool = False, shapes: Sequence[Sequence[int]] | None = None
    ) -> Work[list[Tensor]]:
        self._check_pieces("all_to_all", pieces)
        dtypes = tuple(dict.fromkeys(piece.dtype for piece in pieces))
        return self._launch(Call("all_to_all", dtypes=dtypes), tuple(pieces))

    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        return self.all_to_all(pieces_of(x, self.size))

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        return self._launch(_alike("broadcast", x, self._checked(root, "root")), (x,))

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        return self._launch(_alike("reduce", x, self._checked(root, "root")), (x,))

    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        return self._launch(Call("gather", self._checked(root, "root"), (x.dtype,)), (x,))

    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        self._checked(root, "root")
        if self.rank != root:
            return self._launch(Call("scatter", root), ())
        if pieces is None:
            raise ConfigurationError("scatter needs the pieces at its root, one for each rank")
        self._check_pieces("scatter", pieces)
        return self._launch(Call("scatter", root), tuple(pieces))

    def tell_all(self, operation: str, value: Any) -> Work[list[Any]]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        read = lambda results: [json.loads(bytes(each.tolist())) for each in results[0]]  # noqa: E731
        return Together([self.all_gather(text)], read, self.clock)

    def barrier(self) -> Work[None]:
        return self._launch(Call("barrier"), ())

    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        return self._stage.post.send(self.rank, (self.name, self._known(to, "receiver"), tag), message)

    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        self._own()
        if source is not None:
            self._known(source, "sender")
        return self._stage.post.receive((self.name, self.rank, tag), source, self.timeout, needs)

    def empty(self, numel: int, dtype: torch.dtype, *, patience: float = 0.0) -> Tensor:
        """Return ordinary memory, which all virtual workers share."""
        return torch.empty(numel, dtype=dtype)

    def make_common(self, nbytes: int) -> Common:
        x = torch.zeros(nbytes, dtype=torch.uint8)
        return Common(x, Message((x[:0],), shared=True))

    def find_common(self, invitation: Message) -> Common:
        whole = invitation.tensors[0].untyped_storage()  # no byte of it is sent
        return Common(torch.empty(0, dtype=torch.uint8).set_(whole), invitation)

    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        return self._stage.spawn(self.rank, name, partial(task, self.channel(name)))

    def crash(self) -> None:
        self._stage.crash(self.rank)

    def close(self) -> None:
        """Do nothing: there are no resources."""

    # -- inside

    def _launch(self, call: Call, inputs: Inputs) -> Work[Any]:
        self._own()
        launched = self._channels.launched
        number = launched.get(self.name, 0)
        launched[self.name] = number + 1
        key = (self.name, number)
        return self._stage.rendezvous.launch(self.rank, key, call, inputs, self.timeout)

    def _own(self) -> None:
        """Assert that the wire belongs to this thread: the first that uses it, as long as it lives."""
        strand = self._stage.scheduler.running()
        if self._owner is not strand:
            assert self._owner is None or self._owner not in self._stage.scheduler.strands, (
                f"the wire {self.name} of rank {self.rank} belongs to another thread; take a channel"
            )
            self._owner = strand

    def _checked(self, rank: int, role: str) -> int:
        if not 0 <= rank < self.size:
            raise ConfigurationError(f"the {role} is a rank from 0 to {self.size - 1}, not {rank!r}")
        return rank

    def _known(self, rank: int, role: str) -> int:
        if not 0 <= rank < self.max_size:
            raise ConfigurationError(f"the {role} is a rank from 0 to {self.max_size - 1}, not {rank!r}")
        return rank

    def _check_pieces(self, operation: str, pieces: Sequence[Tensor]) -> None:
        if len(pieces) != self.size:
            raise ConfigurationError(f"{operation} takes one piece for each of {self.size} ranks, not {len(pieces)}")


def _alike(operation: str, x: Tensor, root: int | None = None) -> Call:
    """Return a call that needs equal shapes and dtypes on all workers."""
    return Call(operation, root, (x.dtype,), tuple(x.shape))
