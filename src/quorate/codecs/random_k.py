"""Random-k: a random share of the numbers, the same ones on every worker.

Idea: The vector is cut into k intervals of equal length, and one number of each is sent, drawn from a seed that all
workers share. So no positions are sent, and the same all-reduce adds codes like dense vectors. What is left out is
remembered and added to the next vector. With `scaled` each number sent is multiplied by the length of its interval
instead, so that the code is unbiased, and nothing is remembered. (The paper draws any k of all numbers; one of each
interval gives every number the same probability, has a smaller variance, and needs k draws.)

Cost: 4 bytes for each number sent, in a dense sum: 2 (P - 1) / P density d numbers per worker. Only the numbers sent
are read and written. One vector of memory, except with `scaled`.

When it loses: Numbers arrive 1 / density rounds late on average, some far later, so the largest stable learning rate
falls about in proportion to the density. Where few numbers hold most of the norm: it sends only its share of them, and
with few workers top-k keeps more at the same density. `scaled` adds noise of 1 / density - 1 times the squared norm.

Paper: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, definition 2.2; the same numbers on all
workers: Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019; scaled: Wangni, Wang, Liu and Zhang, "Gradient
sparsification for communication-efficient distributed optimization", NeurIPS 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.selection import check_density
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of


@register("random-k")
@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """A random share of the numbers, the same ones on every worker."""

    is_linear: ClassVar[bool] = True

    density: float = 0.1
    """Share of the numbers that are sent, above 0 and at most 1."""
    scaled: bool = False
    """Whether numbers are scaled so that the code is unbiased; then no error feedback is used."""

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def is_biased(self) -> bool:  # type: ignore[override]  # as the setting says
        """Whether numbers are not scaled."""
        return not self.scaled

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        where, lengths = self._drawn(x.numel(), draw, x.device)
        values = x.index_select(0, where).float()
        return values.mul_(lengths) if self.scaled else values, memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        decoded = torch.zeros(numel_of(shapes), device=code.device)
        where, _ = self._drawn(decoded.numel(), draw, code.device)
        decoded.index_copy_(0, where, code.float())
        return decoded

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        where, _ = self._drawn(into.numel(), draw, code.device)
        into.index_add_(0, where, code.to(into.dtype))

    def wire_bytes(self, shapes: Shapes) -> int:
        return 4 * self._count(numel_of(shapes))

    def contraction(self, shapes: Shapes) -> float | None:
        numel = numel_of(shapes)
        longest = -(-numel // max(1, self._count(numel)))
        if not self.scaled:
            return 1 / max(1, longest)
        return 2.0 - longest if longest < 2 else None

    def _count(self, numel: int) -> int:
        return min(numel, max(1, math.floor(self.density * numel)))

    def _drawn(self, numel: int, draw: Draw, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the places of the numbers sent, and the lengths of their intervals."""
        count = self._count(numel)
        begins = torch.arange(count + 1, device=device) * numel // max(1, count)
        lengths = begins.diff()
        drawn = torch.rand(count, generator=draw.generator(device, shared=True), device=device, dtype=torch.float64)
        return begins[:-1] + (drawn * lengths).long(), lengths
