"""Parameters that all workers of one host share: they lie in memory that all write to, and in copies during a pause.

Nothing orders the accesses of workers to this memory. During a pause of all, each worker has its parameters in a copy
that no other worker writes to. So all workers evaluate and save the same numbers, however soon some of them go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from quorate.core.contracts import Common, Message, Wire, Work
from quorate.core.errors import ConfigurationError, WireTimeout, ranks_in_words
from quorate.means.admission import OpenAdmission
from quorate.replica.replica import Replica

_TAG = "common parameters"
_LOOK_EVERY = 0.02
_SLICE = 0.25
"""Seconds after which a wait looks for dead workers."""
_ALIGNED = 64
"""Bytes of a cache line: no two storages have one in common."""


@dataclass(frozen=True, slots=True)
class MemoryFields:
    """The message with which another worker finds the memory of some parameters."""

    wire_header: Mapping[str, Any]  # open: that of `Common.invitation`
    signature: list[Any]  # open: see `Slots.signature`

    def header(self) -> dict[str, Any]:
        return {**self.wire_header, "laid out": self.signature}

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> MemoryFields:
        return cls(header, header["laid out"])


@dataclass(frozen=True, slots=True)
class InvitedPiece:
    """Parameters in common memory, and how a newcomer finds them."""

    memory: Mapping[str, Any]  # open: the header of `MemoryFields`
    places: Sequence[int]  # those of the parameters in the replica
    tensors: int  # how many tensors of the message belong to it

    def header(self) -> dict[str, Any]:
        return {**self.memory, "parameters": self.places, "tensors": self.tensors}


@dataclass(frozen=True, slots=True)
class Invitation:
    """The message with which a newcomer finds the memory."""

    pauses: int
    pieces: Sequence[InvitedPiece]

    def header(self) -> dict[str, Any]:
        return {"pauses": self.pauses, "pieces": [piece.header() for piece in self.pieces]}

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> Invitation:
        pieces = [InvitedPiece(piece, piece["parameters"], piece["tensors"]) for piece in header["pieces"]]
        return cls(header["pauses"], pieces)


@dataclass
class _Piece:
    """Parameters that were moved to common memory together: those of the start, or some that were added later."""

    slots: Slots
    common: Common
    parameter_ids: list[int]
    """The `id` of each parameter."""


class CommonParameters:
    """The common parameters of one optimizer; all `living` members (ranks) make the same calls.

    Cost: the parameters once per host, instead of once per worker; during a pause, two copies of them per worker. A
    pause costs one write to the board, and one read for each other worker.
    """

    def __init__(self, replica: Replica, wire: Wire, living: Callable[[], list[int]]) -> None:
        self._replica, self._wire, self._living = replica, wire.channel("common"), living
        self._pieces: list[_Piece] = []
        self._copies: list[tuple[Tensor, Tensor]] | None = None
        """During a pause, by piece: the worker's copy, and its first numbers; otherwise None."""
        self._pauses = 0
        """Number of pauses of all so far: the same on every worker."""
        self._error_watch: Work[tuple[int, Message]] | None = None
        self._looked_at = -math.inf
        self.admission = OpenAdmission(wire)
        """Admission of newcomers."""

    def take_in(self) -> None:
        """Move parameters that are not in common memory yet; the first member makes the memory, with its numbers.

        Memory with parameters that the optimizer no longer has is replaced, as newcomers could not lay it out. Raises
        `ConfigurationError` for parameters that cannot be moved, and where workers lay them out differently.
        """
        present = {id(p) for p in self._replica.every}
        for piece in [piece for piece in self._pieces if not present.issuperset(piece.parameter_ids)]:
            piece.slots.separate(piece.common.memory)
            self._pieces.remove(piece)
        moved = {parameter_id for piece in self._pieces for parameter_id in piece.parameter_ids}
        new = [p for p in self._replica.every if id(p) not in moved]
        if not new:
            return
        slots = Slots(new, self._model_tensors())
        wire, members = self._wire, self._living()
        if wire.rank == members[0]:
            common = wire.make_common(slots.nbytes)
            slots.copy_to(common.memory)
            for peer in members[1:]:
                wire.send(_invitation(common, slots), peer, _TAG)
        else:
            _, message = wire.receive(members[0], _TAG).wait()
            _check(message, slots, members[0], wire.rank)
            common = wire.find_common(message)
        slots.move_to(common.memory)
        self._pieces.append(_Piece(slots, common, [id(p) for p in new]))

    def invitation(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Return plain JSON and tensors with which a newcomer finds the memory, as long as this worker lives."""
        place_of = {id(p): place for place, p in enumerate(self._replica.every)}
        pieces, tensors = list[InvitedPiece](), list[Tensor]()
        for piece in self._pieces:
            message = _invitation(piece.common, piece.slots)
            places = [place_of[parameter_id] for parameter_id in piece.parameter_ids]
            pieces.append(InvitedPiece(message.header, places, len(message.tensors)))
            tensors += message.tensors
        return Invitation(self._pauses, pieces).header(), tensors

    def comes(self, header: Mapping[str, Any], leave_if_over: Callable[[], None]) -> None:
        """See `train.joining.OpenTraining`: nothing to prepare."""

    def withdraws(self) -> None:
        """See `train.joining.OpenTraining`: nothing to undo."""

    def enters(self) -> None:
        """See `train.joining.OpenTraining`: nothing left to do."""

    def follow(self, header: Mapping[str, Any], tensors: Sequence[Tensor], source: int) -> None:
        """Move the parameters of this worker, a newcomer, to the common memory, by the `invitation` of `source`.

        Raises `ConfigurationError` as `take_in`.
        """
        invitation = Invitation.read(header)
        remaining, self._pauses = list(tensors), invitation.pauses
        for piece in invitation.pieces:
            parameters = [self._replica.every[place] for place in piece.places]
            message = Message(tuple(remaining[: piece.tensors]), piece.memory, shared=True)
            del remaining[: piece.tensors]
            slots = Slots(parameters, self._model_tensors())
            _check(message, slots, source, self._wire.rank)
            common = self._wire.find_common(message)
            slots.move_to(common.memory)
            self._pieces.append(_Piece(slots, common, [id(p) for p in parameters]))

    def _model_tensors(self) -> list[Tensor]:
        """Return the model's tensors, which may be views of the moved parameters."""
        model = self._replica.model
        return [*model.parameters(), *model.buffers()]

    def look(self) -> None:
        """Take back parameters, and raise the errors of other workers, as `Work.wait`, after a step without a wait.

        Cost: the address of each parameter; two accesses to the board, at most every 20 ms.
        """
        self._take_back()
        now = self._wire.clock.now()
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        self._error_watch = self._error_watch or self._wire.receive(None, "nothing")
        with suppress(WireTimeout):
            self._error_watch.wait(0.0)

    def _take_back(self) -> None:
        """Move parameters back, with their numbers, whose memory the script has replaced (`p.data = x`).

        Raises `ConfigurationError` where they have another shape or dtype.
        """
        for number, piece in enumerate(self._pieces):
            piece.slots.take_back(piece.common.memory if self._copies is None else self._copies[number][0])

    def has_any(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether one of `parameters` lies in the common memory."""
        addresses = {piece.common.memory.untyped_storage().data_ptr() for piece in self._pieces}
        return any(p.untyped_storage().data_ptr() in addresses for p in parameters if p.layout == torch.strided)

    # -- pauses of all

    def detach(self) -> None:
        """Begin a pause: move the parameters to a copy, until `reattach`. Returns when all workers have one."""
        self._take_back()
        self._pauses += 1
        self._copies = [(x, x.clone()) for x in (piece.common.memory.clone() for piece in self._pieces)]
        for piece, (memory, _) in zip(self._pieces, self._copies, strict=True):
            piece.slots.move_to(memory)
        board = self._wire.board
        board.delete(self._key(self._pauses - 2, ""))
        board.set(self._key(self._pauses, str(self._wire.rank)), b"apart")
        self._wait()

    def reattach(self) -> None:
        """End the pause: move the parameters back to the common memory. The first worker that goes on writes there what
        the script has changed in the copies, the same on all workers."""
        if self._copies is None:
            return
        self._take_back()
        copies, self._copies = self._copies, None
        key, name = self._key(self._pauses, "edited"), str(self._wire.rank).encode()
        for piece, (memory, before) in zip(self._pieces, copies, strict=True):
            is_edited = not torch.equal(memory, before)
            if is_edited and (self._wire.board.swap(key, None, name) or self._wire.board.get(key) == name):
                piece.slots.edits(memory, before, into=piece.common.memory)
            piece.slots.move_to(piece.common.memory)

    def ends(self) -> None:
        """Announce that this worker has ended: pauses of the others do not wait for it."""
        self._take_back()
        self._wire.board.set(self._ended_key(self._wire.rank), b"ended")

    def leave(self) -> None:
        """Move the parameters to memory of this worker, after all have ended."""
        for piece in self._pieces:
            piece.slots.move_to(piece.common.memory.clone())
        self._pieces.clear()

    def _wait(self) -> None:
        wire, until = self._wire, self._wire.clock.now() + self._wire.timeout
        while missing := [rank for rank in self._living() if not self._has_paused(rank)]:
            if wire.clock.now() > until:
                late = ranks_in_words(missing)
                raise WireTimeout(f"rank {wire.rank} waited {wire.timeout:g} s for {late} to rest", missing)
            with suppress(WireTimeout):
                wire.board.wait([self._key(self._pauses, str(missing[0]))], _SLICE)

    def _has_paused(self, rank: int) -> bool:
        board = self._wire.board
        return board.get(self._key(self._pauses, str(rank))) is not None or board.get(self._ended_key(rank)) is not None

    def _key(self, pause: int, entry: str) -> str:
        return f"{self._wire.name}/rest {pause}/{entry}"

    def _ended_key(self, rank: int) -> str:
        return f"{self._wire.name}/ended {rank}"


def check_shareable(replica: Replica, wire: Wire, label: str) -> None:
    """Raise `ConfigurationError` if the parameters cannot lie in memory that all workers write to."""
    hosts = {wire.host_of(rank) for rank in range(wire.size)}
    if len(hosts) > 1:
        raise ConfigurationError(
            f"{label} updates parameters in memory that the processes of one host share, and the workers are on "
            f"{len(hosts)} hosts. Start all of them on one host, or choose ad-psgd, which does not wait either"
        )
    names = {id(p): name for name, p in replica.model.named_parameters()}
    for p in replica.every:
        if p.device.type != "cpu" or p.layout != torch.strided:
            name = names.get(id(p), "a parameter")
            kind = f"on {p.device}" if p.device.type != "cpu" else f"of the layout {p.layout}"
            raise ConfigurationError(
                f"{label} updates parameters in CPU memory that the processes of one host share, as dense tensors, and "
                f"{name} is {kind}; leave the model on the CPU, or choose another strategy"
            )


def _invitation(common: Common, slots: Slots) -> Message:
    return replace(common.invitation, header=MemoryFields(common.invitation.header, slots.signature).header())


def _check(message: Message, slots: Slots, first: int, rank: int) -> None:
    if MemoryFields.read(message.header).signature != slots.signature:
        raise ConfigurationError(
            f"parameters lie in memory on rank {rank} in another order than on rank {first} (strides, or views of each "
            "other), so they cannot be shared. Every worker must build the same model"
        )


@dataclass(frozen=True)
class _Slot:
    """One tensor: where its storage begins in the memory, and where the tensor begins in its storage."""

    tensor: Tensor
    place: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def within(self, memory: Tensor) -> Tensor:
        """Return its numbers in `memory`, a view."""
        offset = (memory.storage_offset() + self.place) // self.dtype.itemsize + self.offset
        view = torch.empty(0, dtype=self.dtype)
        return view.set_(memory.untyped_storage(), offset, self.shape, self.stride)


class Slots:
    """The places of parameters in a piece of memory: their storages, one after the other.

    Tied parameters share a storage, and views stay views of it, also the tensors of `others`. `move_to` moves the
    tensors; `Tensor` objects stay the same, so optimizers and hooks need no change.
    """

    def __init__(self, parameters: Sequence[Parameter], others: Iterable[Tensor] = ()) -> None:
        self._storages: dict[int, tuple[int, torch.dtype, int]] = {}
        """By its address: where a storage begins, its dtype, and how many numbers it holds."""
        self.nbytes, tensors = 0, [*parameters, *others]
        for p in parameters:
            storage = p.untyped_storage()
            if storage.data_ptr() not in self._storages and storage.nbytes():
                count = storage.nbytes() // p.element_size()
                self._storages[storage.data_ptr()] = self.nbytes, p.dtype, count
                self.nbytes += -(-storage.nbytes() // _ALIGNED) * _ALIGNED
        self._slots: list[_Slot] = []
        for x in dict(zip(map(id, tensors), tensors, strict=True)).values():
            storage_place = self._storages.get(x.untyped_storage().data_ptr()) if x.layout == torch.strided else None
            if storage_place is not None:
                self._slots.append(_Slot(x, storage_place[0], int(x.storage_offset()), x.shape, x.stride(), x.dtype))

    @property
    def signature(self) -> list[Any]:
        """A value that is equal on workers which may share memory; plain JSON."""
        return [[s.place, str(s.tensor.dtype), list(s.shape), list(s.stride), s.offset] for s in self._slots]

    def copy_to(self, memory: Tensor) -> None:
        """Write the numbers into `memory`, byte by byte."""
        for slot in {slot.place: slot for slot in self._slots}.values():
            numbers = torch.empty(0, dtype=torch.uint8).set_(slot.tensor.untyped_storage())
            memory[slot.place : slot.place + numbers.numel()].copy_(numbers)

    def move_to(self, memory: Tensor) -> None:
        """Move the tensors into `memory`."""
        for slot in self._slots:
            slot.tensor.data = slot.within(memory)

    def take_back(self, memory: Tensor) -> None:
        """Move tensors that lie elsewhere into `memory`, with their numbers.

        Raises `ConfigurationError` for a tensor that has another shape or dtype than before.
        """
        address = memory.untyped_storage().data_ptr()
        for slot in self._slots:
            x = slot.tensor
            if x.untyped_storage().data_ptr() == address:
                continue
            if (x.shape, x.dtype) != (slot.shape, slot.dtype):
                raise ConfigurationError(
                    f"a parameter in memory that all workers share has the shape {tuple(x.shape)} ({x.dtype}) now, "
                    f"and had {tuple(slot.shape)} ({slot.dtype}) when it was distributed. Convert the model before "
                    "quorate.distribute; a parameter of another shape is to take its place in optimizer.param_groups"
                )
            place = slot.within(memory)
            x.data = place.copy_(x.detach())

    def separate(self, memory: Tensor) -> None:
        """Move each storage from `memory` into memory of its own, where a model that was built now has it."""
        own = {
            place: memory[place : place + count * dtype.itemsize].clone().untyped_storage()
            for place, dtype, count in self._storages.values()
        }
        for slot in self._slots:
            x = slot.tensor
            x.data = torch.empty(0, dtype=x.dtype).set_(own[slot.place], slot.offset, slot.shape, slot.stride)

    def edits(self, memory: Tensor, shown: Tensor, into: Tensor) -> bool:
        """Add the changes of `memory` since it was `shown` to `into`, and return whether there are any.

        A number of `into` that equals the shown one becomes the written one; others move by the difference.
        """
        if torch.equal(memory, shown):
            return False
        for place, dtype, count in self._storages.values():
            end = place + count * dtype.itemsize
            adds = dtype.itemsize > 1 and (dtype.is_floating_point or dtype.is_complex)
            new, before, target = (x[place:end].view(dtype if adds else torch.uint8) for x in (memory, shown, into))
            changed = new != before
            edited = torch.where(target == before, new, target + (new - before)) if adds else new
            target[changed] = edited[changed]
        return True
