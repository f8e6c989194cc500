"""Random-k: a random share of the numbers, the same ones on every worker.

Idea: The vector is cut into k stretches of equal length, and one number of each travels, drawn from a seed that all
workers share. So nobody has to say which, and codes are added as dense vectors are, by the same all-reduce. What was
left out is remembered and added to the next vector; with `scaled` each number that travels is multiplied by the length
of its stretch instead, so that the mean over draws is the vector, and nothing is remembered. (Published is any k of all
numbers; one of each stretch is as likely for every number, varies less, and is drawn in k steps.)

Cost: 4 bytes for each number that travels, in a dense sum: 2 (P - 1) / P density d numbers a worker. Only what travels
is read and written. One vector of memory, but with `scaled`.

When it loses: Numbers come 1 / density rounds late in the mean, some far later, so the largest stable learning rate
falls about as the density does. Where few numbers hold most of the norm, of which it finds only its share: top-k keeps
more at the same density on few workers. `scaled` adds noise of 1 / density - 1 times the squared norm.

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
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of
from quorate.core.errors import ConfigurationError


@register("random-k")
@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """A random share of the numbers, the same ones on every worker."""

    is_linear: ClassVar[bool] = True

    density: float = 0.1
    """The share of numbers that travel, above 0, at most 1."""
    scaled: bool = False
    """Whether numbers are multiplied so that the mean is right, and what is left out is not to be remembered."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigurationError(
                f"density is {self.density}; it must be a share of all numbers, above 0 and at most 1"
            )

    @property
    def is_biased(self) -> bool:  # type: ignore[override]  # as the setting says
        """But where numbers are scaled."""
        return not self.scaled

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        where, lengths = self._drawn(x.numel(), draw, x.device)
        values = x.index_select(0, where).float()
        return values.mul_(lengths) if self.scaled else values, memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        found = torch.zeros(numel_of(shapes), device=code.device)
        where, _ = self._drawn(found.numel(), draw, code.device)
        found.index_copy_(0, where, code.float())
        return found

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
        """Where the numbers lie that travel, and how long the stretch of each one is."""
        count = self._count(numel)
        begins = torch.arange(count + 1, device=device) * numel // max(1, count)
        lengths = begins.diff()
        drawn = torch.rand(count, generator=draw.generator(device, shared=True), device=device, dtype=torch.float64)
        return begins[:-1] + (drawn * lengths).long(), lengths
