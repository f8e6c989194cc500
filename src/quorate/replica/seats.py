"""Where the numbers of a model's parameters lie: moved to other memory, and back, while the tensors stay the same."""

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
    """Of one tensor: where its storage begins in the memory, and where it lies in its storage."""

    tensor: Tensor
    place: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Seats:
    """The places of some parameters in a piece of memory: those of their storages, one after the other.

    Tied parameters have one storage, and views of one stay views of it; so do those of `others` that look at the same
    numbers. `sit` lets the tensors lie in a piece of memory; `Tensor` objects stay what they are, so optimizers, hooks
    and whoever else holds them notice nothing.
    """

    def __init__(self, parameters: Sequence[Parameter], others: Iterable[Tensor] = ()) -> None:
        self._storages: dict[int, tuple[int, torch.dtype, int]] = {}
        """By its address: where it begins, what it holds, and how many of that."""
        self.nbytes, looked_at = 0, [*parameters, *others]
        for p in parameters:
            storage = p.untyped_storage()
            if storage.data_ptr() not in self._storages and storage.nbytes():
                count = storage.nbytes() // p.element_size()
                self._storages[storage.data_ptr()] = self.nbytes, p.dtype, count
                self.nbytes += -(-storage.nbytes() // _ALIGNED) * _ALIGNED
        self._seated: list[_Seat] = []
        for x in dict(zip(map(id, looked_at), looked_at, strict=True)).values():
            found = self._storages.get(x.untyped_storage().data_ptr()) if x.layout == torch.strided else None
            if found is not None:
                self._seated.append(_Seat(x, found[0], int(x.storage_offset()), x.shape, x.stride()))

    @property
    def signature(self) -> list[Any]:
        """Equal on workers whose memory may be the same; plain JSON."""
        return [[s.place, str(s.tensor.dtype), list(s.shape), list(s.stride), s.offset] for s in self._seated]

    def copy_to(self, memory: Tensor) -> None:
        """Write the numbers there, byte by byte."""
        for seat in {seat.place: seat for seat in self._seated}.values():
            numbers = torch.empty(0, dtype=torch.uint8).set_(seat.tensor.untyped_storage())
            memory[seat.place : seat.place + numbers.numel()].copy_(numbers)

    def sit(self, memory: Tensor) -> None:
        """From now on the tensors lie there."""
        storage, begin = memory.untyped_storage(), memory.storage_offset()
        for seat in self._seated:
            x = seat.tensor
            offset = (begin + seat.place) // x.element_size() + seat.offset
            x.data = torch.empty(0, dtype=x.dtype).set_(storage, offset, seat.shape, seat.stride)

    def edits(self, memory: Tensor, shown: Tensor, into: Tensor) -> bool:
        """Take what was written into `memory` since it was `shown` over into a third one; whether there is anything.

        A number that is there what was shown becomes what was written; one that has moved meanwhile moves as far.
        """
        if torch.equal(memory, shown):
            return False
        for place, dtype, count in self._storages.values():
            end = place + count * dtype.itemsize
            adds = dtype.itemsize > 1 and (dtype.is_floating_point or dtype.is_complex)
            mine, before, there = (x[place:end].view(dtype if adds else torch.uint8) for x in (memory, shown, into))
            changed = mine != before
            there[changed] = (torch.where(there == before, mine, there + (mine - before)) if adds else mine)[changed]
        return True
