"""A sum under way in shared memory, and the place of this worker's numbers for the others of its host."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.contracts import Write
from quorate.wire.cut import piece
from quorate.wire.real.carried import numbers_of
from quorate.wire.real.shared_segment import READY, SLOTS, Bytes, SharedSegment, small_bytes

_KEPT = 4
"""Blocks kept for the next tensors outside of shared memory."""


class Sum:
    """One sum under way, written into `x` (contiguous); or `x` gets the pieces that all write, or is looked at."""

    def __init__(
        self,
        x: Tensor,
        operation: str,
        number: int,
        size: int,
        *,
        write: Write | None = None,
        is_looked_at: bool = False,
    ) -> None:
        self.x, self.number, self.operation = x, number, zlib.crc32(operation.encode())
        numbers = self.numbers = numbers_of(x)
        self.is_small = numbers.nbytes <= small_bytes(size)
        self.own: NDArray[Any] = numbers
        """This worker's numbers, in the memory that others read."""
        self.staged: Tensor | None = None
        self.narrow: torch.dtype | None = None
        """The dtype sent between hosts, where it is smaller."""
        self.write = write
        """Writes this worker's piece of all workers' `x`; None: `x` becomes the sum."""
        self.failed: BaseException | None = None
        """The error of `write`, which may have written a part."""
        self.is_looked_at, self.pieces = is_looked_at, list[NDArray[Any]]()
        """Whether each worker only looks at its piece of all workers' `x`; and these pieces, by rank."""
        self.is_shown = self.is_added = self.is_over = False

    def written_to(self, into: Sequence[NDArray[Any]]) -> None:
        """Have `write` fill this worker's pieces; once, as it may read their numbers."""
        if self.failed is not None:
            raise self.failed
        assert self.write is not None
        try:
            self.write([torch.from_numpy(x).view(self.x.dtype) for x in into])
        except BaseException as error:
            self.failed = error
            raise


class Shelf:
    """The numbers of sums: in a slot if small; else in their own memory if that is shared, or in a block."""

    def __init__(self, segment: SharedSegment) -> None:
        self._segment = segment
        self._staging: list[Tensor] = []

    def show(self, sum_: Sum) -> None:
        """Put this worker's numbers into shared memory, and announce them."""
        place = 0
        if self._segment.size == 1:
            pass  # there are no others
        elif sum_.is_small:
            slot: Bytes = self._segment.own.slots[sum_.number % SLOTS][: sum_.numbers.nbytes]
            sum_.own = slot.view(sum_.numbers.dtype)
            sum_.own[...] = sum_.numbers
            if sum_.write is not None:
                sum_.written_to([sum_.own[piece(len(sum_.own), self._segment.rank, self._segment.size)]])
        else:
            home = sum_.x
            if not self._segment.lends(home):
                home = sum_.staged = self._stage(sum_.numbers.nbytes)
                sum_.own = home.numpy()[: sum_.numbers.nbytes].view(sum_.numbers.dtype)
                np.copyto(sum_.own, sum_.numbers)
            place = self._segment.place_of(home, is_looked_at=sum_.is_looked_at)
        self._segment.show(sum_.number, sum_.operation, place)
        sum_.is_shown = True
        self._segment.post(READY)

    def take_back(self, sum_: Sum) -> None:
        """Copy the sum back to `x`."""
        if sum_.own is not sum_.numbers:
            np.copyto(sum_.numbers, sum_.own)
        if sum_.staged is not None:
            self._staging = [sum_.staged, *self._staging[: _KEPT - 1]]
            sum_.staged = None

    def _stage(self, nbytes: int) -> Tensor:
        """Return a block of `nbytes` up to twice as many."""
        for index, x in enumerate(self._staging):
            if nbytes <= len(x) <= 2 * nbytes:
                return self._staging.pop(index)
        return self._segment.lent(nbytes)
