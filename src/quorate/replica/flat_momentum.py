"""The heavy-ball momentum of one worker in the layout of its vectors: blocks of it stay in the cache during a step."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import local
from quorate.core.vectors import Flat, Layout
from quorate.replica.worker_momentum import TINY, OwnMoment, WorkerMomentum, beta_of, is_decoupled

_OPTIONS = ("momentum", "weight_decay", "dampening", "maximize", "betas", "decoupled_weight_decay")
"""Options of a parameter group that enter its momentum."""
BLOCK = 1 << 16
"""Numbers of the vector and of the momentum in a block: 256 KiB of each in float32."""


class FlatMomentum:
    """`WorkerMomentum.ahead` for SGD, written into a vector: the same numbers in half the time and without memory.

    The momenta of `momentum` become views of one vector, also for all other methods. Cost of a step: the gradient is
    read once, and the vector and the momentum are read and written twice and once, in blocks.
    """

    def __init__(self, momentum: WorkerMomentum, parameters: Sequence[Tensor], layout: Layout) -> None:
        self.layout, self.momentum, self._parameters = layout, momentum, tuple(parameters)
        self._numbers: Flat | None = None
        self._dtypes = [layout.parts[segment.part].dtype for segment in layout.segments]
        self._scratch = [torch.empty(min(BLOCK, part.numel), dtype=part.dtype) for part in layout.parts]
        self._ends = [0] * len(layout.parts)
        for segment in layout.segments:
            self._ends[segment.part] = max(self._ends[segment.part], segment.offset + segment.numel)
        self._owns: list[OwnMoment] = []

    def takes(self, gradients: Sequence[Tensor | None]) -> bool:
        """Return whether `step` can be made: parameters have the same options and dense gradients on the CPU, in the
        dtype of the vector, and either all have a momentum or none. Else `WorkerMomentum.ahead` does it."""
        group, moments = self._common_group(), self.momentum.own
        if group is None or beta_of(group) == 0.0 or not self._are_plain(gradients):
            return False
        return sum(p in moments for p in self._parameters) in (0, len(self._parameters))

    def numbers_of(self, vector: Flat) -> list[Tensor]:
        """Return the parts of a vector without its header."""
        return [x[:end] for x, end in zip(vector.parts, self._ends, strict=True)]

    def step(self, vector: Flat, *, weight: float, scale: float) -> list[float]:
        """Turn the gradient in `vector` into `scale` times the momentum one step ahead, and return its energies.

        Args:
            vector: The gradient, which counts `weight`; it is overwritten.
            scale: A factor of the result; it does not enter the momentum.
        """
        group = self.momentum.optimizer.param_groups[0]
        factors = self.momentum.heavy_ball_factors(group, has_begun=self._adopt())
        decay = float(group.get("weight_decay") or 0.0)
        with torch.no_grad():
            if decay and not is_decoupled(group, self.momentum.plain):
                parameters, segments = [local(p) for p in self._parameters], list(vector.segments())
                torch._foreach_add_(segments, parameters, alpha=-decay if group.get("maximize") else decay)
            assert self._numbers is not None
            for x, m, scratch, end in zip(vector.parts, self._numbers.parts, self._scratch, self._ends, strict=True):
                _step(x[:end], m, scratch, factors, weight, scale)
        for own in self._owns:
            own.count += 1
        return [TINY] * len(self._parameters)

    def _common_group(self) -> dict[str, Any] | None:
        """Return the options that all parameters have; None where they differ, or another momentum is kept."""
        if self.momentum.kind != "sgd":
            return None
        first, *others = self.momentum.optimizer.param_groups
        names = [name for name in _OPTIONS if name in first]
        are_same = all(group.get(name) == first[name] for group in others for name in names)
        return first if are_same else None

    def _are_plain(self, gradients: Sequence[Tensor | None]) -> bool:
        for x, dtype in zip(gradients, self._dtypes, strict=True):
            if x is None or x.dtype is not dtype or not x.is_cpu or x.layout is not torch.strided:
                return False
        return True

    def _adopt(self) -> bool:
        """Make the momenta views of one vector, and return whether they have begun."""
        moments = self.momentum.own
        owns = [own for p in self._parameters if (own := moments.get(p)) is not None]
        if owns and len(owns) == len(self._owns) and all(map(is_, owns, self._owns)):
            return True
        if self._numbers is None:
            self._numbers = Flat.zeros(self.layout)
        views = self._numbers.segments()
        for index, p in enumerate(self._parameters):
            if p in moments:
                views[index].copy_(moments[p].m)
                moments[p].m = views[index]
            else:
                moments[p] = OwnMoment(views[index].zero_())
        self._owns = [moments[p] for p in self._parameters]
        return bool(owns)


def _step(
    x: Tensor, m: Tensor, scratch: Tensor, factors: tuple[float, float, float, float], weight: float, scale: float
) -> None:
    beta, old, ahead, taken = factors
    for begin in range(0, len(x), BLOCK):
        block = slice(begin, min(begin + BLOCK, len(x)))
        gradient, moment, ahead_of_it = x[block], m[block], scratch[: block.stop - begin]
        if weight != 1.0:
            gradient.mul_(weight)
        torch.mul(moment.mul_(beta), old, out=ahead_of_it).add_(gradient, alpha=ahead)
        moment.add_(gradient, alpha=taken)
        torch.mul(ahead_of_it, scale, out=gradient)
