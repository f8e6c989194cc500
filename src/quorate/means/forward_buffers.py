"""Buffers that forward passes read and write (codebooks, queues, running centres), and rank 0's of them for everyone.

Batch norm's running statistics are none of them: no forward pass of training reads these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.means.equal_replicas import copy_tensors, scatter_json
from quorate.observe.digests import digest_of
from quorate.wire.current import Place
from quorate.wire.survivors import Survivors, surviving_replicas

SAME, OTHERS = 1.0, 2.0
"""Marks in headers: rank 0's buffers have changed; and these are others, or of other shapes, than before."""
_USUAL = 2
"""Looks in which a buffer had changed, from which on it is copied whenever another one is."""


@dataclass
class _Slot:
    """One buffer's place in its module, which may put another tensor there."""

    name: str
    buffers: dict[str, Tensor | None]
    key: str
    seen: weakref.ref[Tensor] | None = None
    version: int = 0
    digest: int | None = None
    """The digest of the numbers when they were last read; None once the version counter has moved since."""
    moves: int = 0
    """How many looks found the buffer changed."""
    is_silent: bool = False
    """Whether the buffer has changed while its version counter stood still."""

    @property
    def tensor(self) -> Tensor | None:
        return self.buffers.get(self.key)


@dataclass
class ForwardBuffers:
    """The buffers that the forward pass of one model reads, and which of them have changed since the newest look.

    Cost: each look reads one version counter per buffer. Looks 1, 2, 4, 8 and so on also read a sample of the numbers,
    as writes through `.data` move no counter; a buffer that is written so counts as changed in every later look.
    """

    model: Module
    slots: list[_Slot] = field(default_factory=list)
    _looks: int = 0

    def __post_init__(self) -> None:
        self.find()

    def find(self) -> None:
        """Look for the buffers of the model, also new ones. Cost: a pass over its modules."""
        known = {slot.name: slot for slot in self.slots}
        self.slots = []
        for prefix, module in self.model.named_modules():
            if isinstance(module, _NormBase):
                continue
            for key, x in module._buffers.items():
                if x is not None and not is_sharded(x) and not x.is_meta:
                    name = f"{prefix}.{key}" if prefix else key
                    slot = known.get(name)
                    is_known = slot is not None and slot.buffers is module._buffers
                    self.slots.append(slot if is_known and slot is not None else _new(name, module._buffers, key, x))

    def changed(self) -> list[_Slot]:
        """The buffers that have changed since the last call of `seen`."""
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
        """All that has changed up to here is known; `reads`: the numbers of all are read."""
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


@dataclass
class _Known:
    """The forward buffers of all models of one worker; several optimizers may share a model."""

    of_models: weakref.WeakKeyDictionary[Module, ForwardBuffers] = field(default_factory=weakref.WeakKeyDictionary)


def forward_buffers(model: Module, place: Place) -> ForwardBuffers:
    """Return the forward buffers of `model`, one object for all optimizers of the worker."""
    known = place.context(_Known).of_models
    if model not in known:
        known[model] = ForwardBuffers(model)
    return known[model]


class BufferCopies:
    """Gives all workers rank 0's forward buffers as soon as these have changed, as torch DDP does.

    The header of each mean of gradients says whether they have. Where they have, all workers, also those that take part
    without stepping, copy them behind it. Cost: one number in each header; where buffers have changed, what
    `copy_tensors` costs (where the others outlive a death, their bytes to each worker).
    """

    def __init__(self, buffers: ForwardBuffers, wire: Wire, place: Place, members: Callable[[], set[int]]) -> None:
        self.buffers, self._wire, self._members = buffers, wire, members
        self._survivors: Callable[[], Survivors | None] = lambda: surviving_replicas(place)
        self._described: list[list[Any]] = []
        """Name, shape and dtype of the buffers that were copied last."""
        self._is_source = False

    def mark(self) -> float:
        """Return what goes into this worker's next header of a gradient; called where the model has such buffers."""
        self._is_source = self._wire.rank == min(self._members() - self._wire.dead)
        if not self._is_source or not self.buffers.changed():
            return 0.0
        described = [
            [slot.name, list(x.shape), str(x.dtype).removeprefix("torch.")]
            for slot in self.buffers.slots
            if (x := slot.tensor) is not None and (slot.moves >= _USUAL or slot.is_silent or _has_moved(slot))
        ]
        is_same, self._described = described == self._described, described
        return SAME if is_same else OTHERS

    def copy(self, mark: float) -> None:
        """Headers have brought this mark (0: nothing is done). Raises `ConfigurationError` for unknown buffers."""
        if not mark:
            return
        left = self._survivors()
        if left is None:
            self._copy_from_rank_0(has_others=mark != SAME)
        else:
            self._copy_among(left)
        self.buffers.seen()

    def _copy_from_rank_0(self, *, has_others: bool) -> None:
        if has_others:
            self._described = scatter_json(self._described, self._wire)
            self._make_room()
        copy_tensors(self._tensors(), self._wire)

    def _copy_among(self, left: Survivors) -> None:
        mine = Message()
        if self._is_source:
            mine = Message(tuple(x.detach().clone() for x in self._tensors()), {"buffers": self._described})
        self._is_source = False
        told = {rank: one for rank, one in left.gather(mine, "buffers").wait().items() if "buffers" in one.header}
        if not told or min(told) == self._wire.rank:
            return  # the source has died, or is this worker
        message = told[min(told)]
        self._described = [list(one) for one in message.header["buffers"]]
        self._make_room()
        with torch.no_grad():
            for x, numbers in zip(self._tensors(), message.tensors, strict=True):
                x.copy_(numbers)

    def _make_room(self) -> None:
        """For buffers that have another shape or dtype here than at the source."""
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
            wanted = getattr(torch, dtype)
            if list(x.shape) != shape or x.dtype != wanted:
                slots[name].buffers[slots[name].key] = x.new_empty(shape, dtype=wanted)

    def _tensors(self) -> list[Tensor]:
        slots = {slot.name: slot for slot in self.buffers.slots}
        return [x for name, *_ in self._described if (x := slots[name].tensor) is not None]
