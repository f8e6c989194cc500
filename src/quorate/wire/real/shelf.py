"""A sum under way in shared memory, and where this worker's numbers of it lie for the others of its host."""

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
"""Blocks for tensors that lie in memory of their own which are kept for the next ones."""


class Sum:
    """One sum under way: `x` (contiguous) becomes it. Or it becomes what all write to their pieces, or is looked at."""

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
        """Where others find this worker's numbers."""
        self.staged: Tensor | None = None
        self.narrow: torch.dtype | None = None
        """As what it travels between hosts, where that is smaller."""
        self.write = write
        """Writes this worker's piece of everyone's; None: it becomes the sum of everyone's."""
        self.failed: BaseException | None = None
        """What `write` has raised, which may have written some of it."""
        self.is_looked_at, self.found = is_looked_at, list[NDArray[Any]]()
        """Whether everyone only looks at its piece of everyone's; and these pieces, by rank."""
        self.is_shown = self.is_added = self.is_over = False

    def written_to(self, into: Sequence[NDArray[Any]]) -> None:
        """Have this worker's piece written there; once, as it may be made of what lies there."""
        if self.failed is not None:
            raise self.failed
        assert self.write is not None
        try:
            self.write([torch.from_numpy(x).view(self.x.dtype) for x in into])
        except BaseException as error:
            self.failed = error
            raise


class Shelf:
    """In a slot where they are few; else where they are if that is shared, and in a block beside it if not."""

    def __init__(self, segment: SharedSegment) -> None:
        self._segment = segment
        self._staging: list[Tensor] = []

    def show(self, one: Sum) -> None:
        """Put this worker's numbers there, and say so."""
        place = 0
        if self._segment.size == 1:
            pass  # there is nobody to find them
        elif one.is_small:
            slot: Bytes = self._segment.own.slots[one.number % SLOTS][: one.numbers.nbytes]
            one.own = slot.view(one.numbers.dtype)
            one.own[...] = one.numbers
            if one.write is not None:
                one.written_to([one.own[piece(len(one.own), self._segment.rank, self._segment.size)]])
        else:
            home = one.x
            if not self._segment.lends(home):
                home = one.staged = self._stage(one.numbers.nbytes)
                one.own = home.numpy()[: one.numbers.nbytes].view(one.numbers.dtype)
                np.copyto(one.own, one.numbers)
            place = self._segment.place_of(home)
        self._segment.show(one.number, one.operation, place)
        one.is_shown = True
        self._segment.post(READY)

    def take_back(self, one: Sum) -> None:
        """What has been written there is the sum."""
        if one.own is not one.numbers:
            np.copyto(one.numbers, one.own)
        if one.staged is not None:
            self._staging = [one.staged, *self._staging[: _KEPT - 1]]
            one.staged = None

    def _stage(self, nbytes: int) -> Tensor:
        """A block of at least so many bytes, and at most twice as many."""
        for index, x in enumerate(self._staging):
            if nbytes <= len(x) <= 2 * nbytes:
                return self._staging.pop(index)
        return self._segment.lent(nbytes)
