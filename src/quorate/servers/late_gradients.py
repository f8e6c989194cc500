"""What a server makes of a gradient that is late: of parameters that others have moved since."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.servers import ServerTerms
from quorate.servers.shard import Shard

_TINY = 1e-7
_FADES = 0.9
"""Of the running mean of steps."""


class Corrections:
    """Those of one shard: delay compensation (Zheng et al. 2017) and gap-aware scaling (Barkai et al. 2020).

    Cost: where either is on, a copy of the shard for every worker (what it has read), and three passes per gradient.
    """

    def __init__(self, terms: ServerTerms, shard: Shard) -> None:
        self._terms, self._shard = terms, shard
        self._compensates, self._by_gap = terms.delay_compensation != "none", terms.staleness_scaling == "gap"
        self._begin = shard.copied() if self.is_on else []
        self._read = dict[int, Sequence[Tensor]]()
        """What each worker has read last."""
        self._squares = [torch.zeros_like(x) for x in self._begin]
        self._steps = [torch.zeros_like(x) for x in self._begin]
        """The running mean of how far a step moves each number."""
        self._made, self._before = 0, self._begin

    @property
    def is_on(self) -> bool:
        """Whether it goes by what workers have read."""
        return self._compensates or self._by_gap

    def corrected(self, source: int, gradient: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradient of worker `source`, of what it has read last, for where the parameters are now."""
        if not self.is_on:
            return gradient
        now = self._shard.copied()
        found = gradient
        ways = [x - was for x, was in zip(now, self._read.get(source, self._begin), strict=True)]
        if self._compensates:
            found = [
                g + self._strength(place, g) * g * g * way
                for place, (g, way) in enumerate(zip(found, ways, strict=True))
            ]
        if self._by_gap and self._made:
            mean = [step / (1 - _FADES**self._made) for step in self._steps]
            found = [g / (1 + way.abs() / (step + _TINY)) for g, way, step in zip(found, ways, mean, strict=True)]
        return found

    def _strength(self, place: int, gradient: Tensor) -> float | Tensor:
        terms = self._terms
        if terms.delay_compensation == "constant":
            return terms.compensation
        decay, square = terms.compensation_decay, self._squares[place]
        square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        return terms.compensation / (square + _TINY).sqrt()

    def stepped(self) -> None:
        """The shard has made a step."""
        if self._by_gap:
            now = self._shard.copied()
            for mean, x, was in zip(self._steps, now, self._before, strict=True):
                mean.mul_(_FADES).add_((x - was).abs(), alpha=1 - _FADES)
            self._before, self._made = now, self._made + 1

    def read(self, reader: int, numbers: Sequence[Tensor]) -> None:
        """It has read these, which do not change any more."""
        if self.is_on:
            self._read[reader] = numbers
