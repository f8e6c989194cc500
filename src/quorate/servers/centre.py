"""A part of the point that workers are drawn to, and that is drawn to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quorate.servers.shard import Cut


class Centre:
    """The part `cut` of one, where it is at these `numbers`, which are copied, as `Cut.of` gives them."""

    def __init__(self, numbers: Sequence[Tensor], cut: Cut) -> None:
        self.cut, self._numbers = cut, [x.clone() for x in numbers]

    def copied(self, empty: Callable[[int, torch.dtype], Tensor]) -> list[Tensor]:
        """Where it is, as `Cut.of` gives it; `empty(numel, dtype)` makes memory on the CPU."""
        return [empty(x.numel(), x.dtype).copy_(x) if x.device.type == "cpu" else x.clone() for x in self._numbers]

    def draw(self, x: Sequence[Tensor], alpha: float) -> None:
        """c <- c + alpha (x - c), for parameters x that are laid out as `Cut.of` gives them. Cost: two passes."""
        for c, there in zip(self._numbers, x, strict=True):
            c.add_(there.to(c.device) - c, alpha=alpha)
