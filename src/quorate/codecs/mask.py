"""Mask: a share of the numbers, a different one in each round, until all have been sent.

Idea: All numbers have an order that every worker knows, and each round sends the next share of that order. So no
positions are sent, and codes are added like dense vectors. The numbers of one round are spread evenly over each tensor.
With `by="unit"` whole rows of matrices are sent (all weights of one output, together with its bias). What is left out
is remembered, so everything is sent within 1 / density rounds.

Cost: 4 bytes for each number sent, in a dense sum: 2 (P - 1) / P density d numbers per worker. Only the numbers sent
are read and written. One vector of memory.

When it loses: It ignores which numbers are large: each number is up to 1 / density rounds late, so learning rates near
the largest stable one have to be lowered.

Paper: masks known to all in advance: Konečný, McMahan, Yu, Richtárik, Suresh and Bacon, "Federated learning: strategies
for improving communication efficiency", 2016, section 2 (there drawn again each time); one contiguous block after the
other as "random block" in Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import ends_of
from quorate.codecs.selection import check_density
from quorate.core.codec import Draw, Memory, Selection, Shapes


@register("mask")
@dataclass(frozen=True, kw_only=True)
class Mask(Selection):
    """A share of the numbers, a different one in each round, the same on every worker."""

    is_linear: ClassVar[bool] = True

    density: float = 0.1
    """Share of each tensor that is sent, above 0 and at most 1."""
    by: Literal["number", "unit"] = "number"
    """Units that are selected: single numbers, or rows of a matrix."""

    def __post_init__(self) -> None:
        check_density(self.density)

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        chosen = [
            _rows(x[begin:end], size).index_select(0, self._turns(units, draw.round, x.device)).view(-1)
            for (begin, end), units, size in self._units(shapes)
        ]
        return torch.cat(chosen).float() if chosen else x.new_empty(0, dtype=torch.float32), memory

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        first = 0
        for (begin, end), units, size in self._units(shapes):
            turns = self._turns(units, draw.round, code.device)
            last = first + len(turns) * size
            _rows(into[begin:end], size).index_add_(0, turns, _rows(code[first:last], size).to(into.dtype))
            first = last

    def wire_bytes(self, shapes: Shapes) -> int:
        return 4 * sum(self._count(units) * size for _, units, size in self._units(shapes))

    def contraction(self, shapes: Shapes) -> float | None:
        return min((self._count(units) / units for _, units, _ in self._units(shapes)), default=1.0)

    def _count(self, units: int) -> int:
        return math.ceil(self.density * units)

    def _units(self, shapes: Shapes) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Yield ((begin, end), number of units, numbers in a unit) of each tensor that is not empty."""
        numels = [math.prod(shape) for shape in shapes]
        for ends, shape, numel in zip(ends_of(numels), shapes, numels, strict=True):
            if numel:
                units = shape[0] if self.by == "unit" and shape else numel
                yield ends, units, numel // units

    def _turns(self, units: int, round: int, device: torch.device) -> Tensor:
        """Return the units sent in this round: the next ones in an order of equal steps around all of them."""
        count = self._count(units)
        places = (round * count + torch.arange(count, device=device)) % units
        return places * _step(units, count) % units


def _rows(x: Tensor, size: int) -> Tensor:
    return x if size == 1 else x.view(-1, size)


@lru_cache(maxsize=1024)
def _step(units: int, count: int) -> int:
    """Return a step of which `count` go about once around, coprime to `units`, so that steps reach each unit."""
    step = max(1, round(units / count))
    while math.gcd(step, units) > 1:
        step += 1
    return step
