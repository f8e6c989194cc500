"""Copies of tensors in memory of the host that is used again at the next checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor


class HostMemory:
    """One worker's. Cost: the first copy of a tensor allocates, later ones only copy, many at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._used: set[str] = set()
        self._wanted: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """A new checkpoint: what the last one did not use is given back."""
        self._kept = {name: x for name, x in self._kept.items() if name in self._used}
        self._used, self._wanted = set(), []

    def copy(self, name: str, x: Tensor) -> Tensor:
        """Where the numbers of `x` will be, once `end` has been called."""
        there = self._kept.get(name)
        if there is None or there.shape != x.shape or there.dtype != x.dtype:
            there = self._kept[name] = torch.empty(
                x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda", device="cpu"
            )
        self._used.add(name)
        self._wanted.append((there, x))
        return there

    def end(self) -> None:
        """Copy."""
        is_on_gpu = False
        with torch.no_grad():
            for there, x in self._wanted:
                is_on_gpu |= x.device.type == "cuda"
                there.copy_(x, non_blocking=True)
        if is_on_gpu:
            torch.cuda.synchronize()
        self._wanted = []
