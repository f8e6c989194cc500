"""A part of the center variable of elastic averaging: workers are drawn to it, and it is drawn to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quorate.servers.shard import Cut


class Centre:
    """The part `cut` of a centre. It starts at a copy of `numbers`, which are laid out as `Cut.of` returns them."""

    def __init__(self, numbers: Sequence[Tensor], cut: Cut) -> None:
        self.cut, self._numbers = cut, [x.clone() for x in numbers]

    def copied(self, empty: Callable[[int, torch.dtype], Tensor]) -> list[Tensor]:
        """Return a copy of its numbers, laid out as by `Cut.of`; `empty(numel, dtype)` allocates memory on the CPU."""
        return [empty(x.numel(), x.dtype).copy_(x) if x.device.type == "cpu" else x.clone() for x in self._numbers]

    def draw(self, x: Sequence[Tensor], alpha: float) -> None:
        """c <- c + alpha (x - c), for parameters x that are laid out as by `Cut.of`. Cost: two passes."""
        for c, parameter in zip(self._numbers, x, strict=True):
            c.add_(parameter.to(c.device) - c, alpha=alpha)
