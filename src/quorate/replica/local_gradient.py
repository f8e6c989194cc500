"""This worker's own gradient as a vector, before anything was agreed on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Parameter

from quorate.buckets.flat import pack
from quorate.core.vectors import Flat


class LocalGradient(Flat):
    """This worker's gradient as it stands in `.grad`; packed when its numbers are asked for."""

    def __init__(self, parameters: Sequence[Parameter], flat: Flat) -> None:
        super().__init__((), flat.layout)
        self._parameters = parameters

    @property
    def parts(self) -> tuple[Tensor, ...]:
        fresh = Flat.zeros(self.layout)
        pack([p.grad for p in self._parameters], fresh)
        return fresh.parts

    def segments(self) -> tuple[Tensor, ...]:
        return Flat(self.parts, self.layout).segments()
