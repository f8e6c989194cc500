"""Moving the numbers of a model's parameters to other memory and back, while the tensors stay the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

_ALIGNED = 64
"""Bytes of a cache line: no two storages have one in common."""


@dataclass(frozen=True)
class _Seat:
    """One tensor: where its storage begins in the memory, and where the tensor begins in its storage."""

    tensor: Tensor
    place: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Seats:
    """The places of parameters in a piece of memory: their storages, one after the other.

    Tied parameters share a storage, and views stay views of it, also the tensors of `others`. `sit` moves the tensors;
    `Tensor` objects stay the same, so optimizers and hooks need no change.
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
        self._seated: list[_Seat] = []
        for x in dict(zip(map(id, tensors), tensors, strict=True)).values():
            storage_place = self._storages.get(x.untyped_storage().data_ptr()) if x.layout == torch.strided else None
            if storage_place is not None:
                self._seated.append(_Seat(x, storage_place[0], int(x.storage_offset()), x.shape, x.stride()))

    @property
    def signature(self) -> list[Any]:
        """A value that is equal on workers which may share memory; plain JSON."""
        return [[s.place, str(s.tensor.dtype), list(s.shape), list(s.stride), s.offset] for s in self._seated]

    def copy_to(self, memory: Tensor) -> None:
        """Write the numbers into `memory`, byte by byte."""
        for seat in {seat.place: seat for seat in self._seated}.values():
            numbers = torch.empty(0, dtype=torch.uint8).set_(seat.tensor.untyped_storage())
            memory[seat.place : seat.place + numbers.numel()].copy_(numbers)

    def sit(self, memory: Tensor) -> None:
        """Move the tensors into `memory`."""
        storage, begin = memory.untyped_storage(), memory.storage_offset()
        for seat in self._seated:
            x = seat.tensor
            offset = (begin + seat.place) // x.element_size() + seat.offset
            x.data = torch.empty(0, dtype=x.dtype).set_(storage, offset, seat.shape, seat.stride)

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
