"""Buffers that forward passes read and write (codebooks, queues, running centres); all workers get rank 0's.

The running statistics of batch norm do not belong to them: no forward pass of training reads these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields, Header
from quorate.core.local_tensor import is_sharded
from quorate.means.equal_replicas import copy_tensors, scatter_json
from quorate.observe.digests import digest_of
from quorate.wire.survivors import Survivors

SAME, OTHERS, CARRIED = 1.0, 2.0, 0.25
"""Marks in headers. `SAME`: the buffers of rank 0 have changed, and a message of their own follows. `OTHERS`: also
their names or shapes have changed. `CARRIED`: their numbers travel behind this header. Two workers that both count as
rank 0, as a third has died, add up to a mark that is not `CARRIED`.
"""
_USUAL = 2
"""A buffer that had changed at this many looks is copied whenever another one is."""


@dataclass
class _Slot:
    """The place of one buffer in its module, which may put another tensor there."""

    name: str
    buffers: dict[str, Tensor | None]
    key: str
    seen: weakref.ref[Tensor] | None = None
    version: int = 0
    digest: int | None = None
    """The digest of the numbers when they were last read; None if the version counter has moved since."""
    moves: int = 0
    """The number of looks at which the buffer had changed."""
    is_silent: bool = False
    """Whether the buffer has changed while its version counter did not change."""
    is_persistent: bool = True
    """Whether it belongs to the model's state. Others are caches, whose module may know how long they are."""

    @property
    def tensor(self) -> Tensor | None:
        return self.buffers.get(self.key)


@dataclass
class ForwardBuffers:
    """The buffers that the forward pass of one model reads, with those that have changed since the last look.

    Cost: each look reads one version counter per buffer. Looks 1, 2, 4, 8 and so on also read a sample of the numbers,
    as writes through `.data` increment no counter. A buffer that is written in this way counts as changed in every
    later look.
    """

    model: Module
    slots: list[_Slot] = field(default_factory=list)
    _looks: int = 0

    def __post_init__(self) -> None:
        self.find()
        self.are_there = bool(self.slots)
        """Whether there were any at first: this is the same on all workers."""

    def find(self) -> None:
        """Search the model for buffers, also new ones. Cost: a pass over its modules."""
        before = {slot.name: slot for slot in self.slots}
        self.slots = []
        for prefix, module in self.model.named_modules():
            if isinstance(module, _NormBase):
                continue
            for key, x in module._buffers.items():
                if x is not None and not is_sharded(x) and not x.is_meta:
                    name = f"{prefix}.{key}" if prefix else key
                    slot = before.get(name)
                    is_same = slot is not None and slot.buffers is module._buffers
                    slot = slot if is_same and slot is not None else _new(name, module._buffers, key, x)
                    slot.is_persistent = key not in module._non_persistent_buffers_set
                    self.slots.append(slot)

    def changed(self) -> list[_Slot]:
        """Return the buffers that have changed since the last call of `seen`."""
        if not self.slots:
            return []
        self._looks += 1
        if self._looks & (self._looks - 1) == 0:
            for slot in self.slots:
                _read(slot)
        changed = [slot for slot in self.slots if slot.is_silent or _has_moved(slot)]
        for slot in changed:
            slot.moves += 1
        return changed

    def seen(self, *, reads: bool = False) -> None:
        """Take all buffers as unchanged from here on; `reads`: also take the digests of their numbers."""
        for slot in self.slots:
            if (x := slot.tensor) is not None and (reads or _has_moved(slot)):
                slot.seen, slot.version, slot.digest = weakref.ref(x), x._version, digest_of([x]) if reads else None


def _new(name: str, buffers: dict[str, Tensor | None], key: str, x: Tensor) -> _Slot:
    return _Slot(name, buffers, key, weakref.ref(x), x._version, digest_of([x]))


def _has_moved(slot: _Slot) -> bool:
    x = slot.tensor
    return x is not None and (slot.seen is None or slot.seen() is not x or slot.version != x._version)


def _read(slot: _Slot) -> None:
    x = slot.tensor
    if x is None or _has_moved(slot):
        return
    before, slot.digest = slot.digest, digest_of([x])
    slot.is_silent = slot.is_silent or before not in (None, slot.digest)


class BuffersOfModels:
    """The forward buffers of all models of one worker; several optimizers may share a model."""

    def __init__(self) -> None:
        self._of_models = weakref.WeakKeyDictionary[Module, ForwardBuffers]()

    def of(self, model: Module) -> ForwardBuffers:
        """Return the forward buffers of `model`, one object for all optimizers of the worker."""
        if model not in self._of_models:
            self._of_models[model] = ForwardBuffers(model)
        return self._of_models[model]


@dataclass(frozen=True, slots=True)
class CopiedBuffers(Fields):
    """The message of rank 0 about the buffers that it sends, in order."""

    buffers: Sequence[tuple[str, torch.Size, torch.dtype]]  # name, shape and dtype of each

    def header(self) -> dict[str, Any]:
        return {"buffers": [[name, [*shape], str(dtype).removeprefix("torch.")] for name, shape, dtype in self.buffers]}

    @classmethod
    def read(cls, header: Header, **others: Any) -> CopiedBuffers:
        return cls([(name, torch.Size(shape), getattr(torch, dtype)) for name, shape, dtype in header["buffers"]])


class BufferCopies:
    """Copies the forward buffers of rank 0 to all workers as soon as they have changed, as torch DDP does.

    The header of each mean of gradients says whether they have. If so, all workers copy them after the mean, also
    those that take part without stepping. If the same buffers have changed in two steps, headers get room for their
    numbers, which then travel with the gradient. Rank 0 writes them, the others write zeros, and the sum is rank 0's
    numbers.

    Cost: one number in each header. A copy in a message of its own costs that of `copy_tensors` (if the run tolerates
    deaths, the bytes of the buffers to each worker). In headers it adds `room` numbers to each vector.
    """

    def __init__(
        self,
        buffers: ForwardBuffers,
        wire: Wire,
        living: Callable[[], list[int]],
        survivors: Callable[[], Survivors | None],
    ) -> None:
        """`living` returns the ranks that form the means, `survivors` these workers where means outlive a death."""
        self.buffers, self._wire, self._living, self._survivors = buffers, wire, living, survivors
        self._described: Sequence[tuple[str, torch.Size, torch.dtype]] = []
        """Name, shape and dtype of the buffers that were copied last."""
        self._is_source = self._carries = False
        self._aside: dict[str, Tensor] = {}
        """Caches of rank 0 that have another shape here, where they stay as they are."""
        self.room = 0
        """The numbers of buffers for which headers have room."""
        self.usual_numbers = 0
        """The numbers of the buffers that were copied last, if the same ones were copied before; else 0."""

    def forget(self) -> None:
        """Announce the next copy as one of other buffers."""
        self._described, self.room, self.usual_numbers = [], 0, 0

    def mark(self) -> float:
        """Return the mark for the next header of a gradient; call it only where the model has such buffers."""
        self._is_source, self._carries = self._wire.rank == min(self._living()), False
        self._aside.clear()
        if not self._is_source or not self.buffers.changed():
            return 0.0
        described = [
            (slot.name, x.shape, x.dtype)
            for slot in self.buffers.slots
            if (x := slot.tensor) is not None and (slot.moves >= _USUAL or slot.is_silent or _has_moved(slot))
        ]
        is_same, self._described = described == self._described, described
        self._carries = is_same and 0 < self.usual_numbers <= self.room
        return CARRIED if self._carries else SAME if is_same else OTHERS

    def write(self, room: Tensor) -> None:
        """Write the buffers into the room behind the header that `mark` was for, or zeros."""
        if not self._carries:
            room.zero_()
            return
        with torch.no_grad():
            numbers = torch.cat([numbers_of(x, room.dtype).to(room.device) for x in self._tensors()])
            room[: numbers.numel()].copy_(numbers)
            room[numbers.numel() :].zero_()

    def copy(self, mark: float, room: Tensor) -> None:
        """Copy the buffers if `mark` is not 0; `room` is behind the header of the sum that carries the mark.

        Raises `ConfigurationError` for unknown buffers.
        """
        if not mark:
            return
        left = self._survivors()
        if mark == CARRIED:
            self._read(room)
        elif left is None:
            self._copy_from_rank_0(has_others=mark != SAME)
        else:
            self._copy_among(left)
        if mark != CARRIED:
            self.usual_numbers = self._count(room.dtype) if mark == SAME else 0
        self.buffers.seen()

    def _read(self, room: Tensor) -> None:
        if self._is_source:
            return
        self._make_room()
        tensors = self._tensors()
        lengths = [count_in(x.numel(), x.dtype, room.dtype) for x in tensors]
        with torch.no_grad():
            for x, numbers in zip(tensors, room[: sum(lengths)].split(lengths), strict=True):
                take_numbers(x, numbers)

    def _count(self, dtype: torch.dtype) -> int:
        """Return the count of the numbers of the buffers that were copied last, in `dtype`; 0 if they cannot travel."""
        tensors = self._tensors()
        if any(x.layout != torch.strided or x.is_complex() for x in tensors):
            return 0
        return sum(count_in(x.numel(), x.dtype, dtype) for x in tensors)

    def _copy_from_rank_0(self, *, has_others: bool) -> None:
        if has_others:
            sent = scatter_json(CopiedBuffers(self._described).header(), self._wire)
            self._described = CopiedBuffers.read(sent).buffers
        self._make_room()
        copy_tensors(self._tensors(), self._wire)

    def _copy_among(self, left: Survivors) -> None:
        own = Message()
        if self._is_source:
            copied = CopiedBuffers(self._described)
            own = Message(tuple(x.detach().clone() for x in self._tensors()), copied.header())
        self._is_source = False
        messages = {rank: sent for rank, sent in left.gather(own, "buffers").wait().items() if "buffers" in sent.header}
        if not messages or min(messages) == self._wire.rank:
            return  # the source has died, or is this worker
        message = messages[min(messages)]
        self._described = CopiedBuffers.read(message.header).buffers
        self._make_room()
        with torch.no_grad():
            for x, numbers in zip(self._tensors(), message.tensors, strict=True):
                x.copy_(numbers)

    def _make_room(self) -> None:
        """Allocate the buffers that have another shape or dtype here than at the source."""
        self._aside.clear()
        if not {slot.name for slot in self.buffers.slots}.issuperset(name for name, *_ in self._described):
            self.buffers.find()
        slots: Mapping[str, _Slot] = {slot.name: slot for slot in self.buffers.slots}
        for name, shape, dtype in self._described:
            x = slots[name].tensor if name in slots else None
            if x is None:
                raise ConfigurationError(
                    f"the model has a buffer {name} on another worker and none on rank {self._wire.rank}; register "
                    "buffers on all workers alike"
                )
            if x.shape != shape or x.dtype != dtype:
                room = x.new_empty(shape, dtype=dtype)
                if slots[name].is_persistent:
                    slots[name].buffers[slots[name].key] = room
                else:
                    self._aside[name] = room

    def _tensors(self) -> list[Tensor]:
        slots = {slot.name: slot for slot in self.buffers.slots}
        tensors = [self._aside.get(name, slots[name].tensor) for name, *_ in self._described]
        return [x for x in tensors if x is not None]


def _is_exact(dtype: torch.dtype, into: torch.dtype) -> bool:
    """Return whether each number of `dtype` is one of `into`; other dtypes travel as whole numbers of 16 or 8 bits."""
    return dtype.is_floating_point and dtype.itemsize <= into.itemsize


def count_in(numel: int, dtype: torch.dtype, into: torch.dtype) -> int:
    """Return the length of `numbers_of` a tensor of `numel` numbers."""
    return numel if _is_exact(dtype, into) else numel * max(1, dtype.itemsize // 2)


def numbers_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of `x` as a vector of `dtype`, of which a sum with zeros has the same numbers."""
    flat = x.detach().reshape(-1)
    return (flat if _is_exact(x.dtype, dtype) else flat.view(_whole(x.dtype))).to(dtype)


def take_numbers(x: Tensor, numbers: Tensor) -> None:
    """Write into `x` what `numbers_of` has returned for such a tensor."""
    if not _is_exact(x.dtype, numbers.dtype):
        numbers = numbers.to(_whole(x.dtype)).view(x.dtype)
    x.copy_(numbers.view(x.shape))


def _whole(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype.itemsize == 1 else torch.int16
