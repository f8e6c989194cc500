"""What an outer step made of its outer gradient: measured from what was applied, whatever the optimizer.

With d the outer gradient, s the outer step and lr the outer rate: rho is the cosine of d and the one before; the gain
<s, d> / (lr <d, d>) says how many times the plain step it went along d; what is transverse, |s - (<s, d> / <d, d>) d| /
(lr |d|), is momentum of former outer gradients that d does not share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.vectors import Flat

NEWEST, SMOOTHED = "newest gradient", "smoothed rho"
"""What is remembered beside the outer optimizer's own: the outer gradient before, in bfloat16, and a mean of rho."""
SHARE = 0.5
"""What the newest rho counts in the smoothed one."""


@dataclass(frozen=True)
class Measured:
    """Of one outer step; None where an outer gradient is 0 or not finite, and of rho in the first step."""

    norm: float
    """Of the outer gradient."""
    rho: float | None
    smoothed_rho: float | None
    gain: float | None
    transverse: float | None

    def as_row(self) -> dict[str, Any]:
        """As the fields of `core.rows.Outer`."""
        return asdict(self)


def dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The inner product, summed up in double precision, so that the order in which it is summed hardly matters."""
    return sum(float(torch.sum(_real(x) * _real(y), dtype=torch.float64)) for x, y in zip(one, other, strict=True))


def of_optimizer(memory: dict[str, Any]) -> dict[str, Any]:
    """What of `memory` is the outer optimizer's own."""
    return {name: value for name, value in memory.items() if name not in (NEWEST, SMOOTHED)}


def correlated(gradient: Flat, memory: dict[str, Any]) -> tuple[float | None, float | None]:
    """rho and its smoothed value; `memory` has `gradient` for the newest from now on."""
    rho: float | None = None
    if NEWEST in memory:
        before = [old.to(new.device) for old, new in zip(memory[NEWEST], gradient.parts, strict=True)]
        rho = _ratio(dot(gradient.parts, before), math.sqrt(dot(gradient.parts, gradient.parts) * dot(before, before)))
    memory[NEWEST] = [_real(part).to(torch.bfloat16, copy=True) for part in gradient.parts]
    smoothed: float | None = memory.get(SMOOTHED)
    if rho is not None:
        smoothed = rho if smoothed is None else (1 - SHARE) * smoothed + SHARE * rho
        memory[SMOOTHED] = smoothed
    return rho, smoothed


def measured(before: Flat, after: Flat, gradient: Flat, memory: dict[str, Any], rate: float) -> Measured:
    """What the outer step from `before`, which is written over, to `after` made of `gradient`."""
    rho, smoothed = correlated(gradient, memory)
    for old, new in zip(before.parts, after.parts, strict=True):
        old.sub_(new)  # the step
    square, along = dot(gradient.parts, gradient.parts), dot(before.parts, gradient.parts)
    share = _ratio(along, square)
    if share is None:
        return Measured(math.sqrt(square), rho, smoothed, None, None)
    before.add_(gradient, alpha=-share)
    norm = math.sqrt(square)
    transverse = math.sqrt(dot(before.parts, before.parts))
    return Measured(norm, rho, smoothed, share / rate, _ratio(transverse, rate * norm))


def _real(x: Tensor) -> Tensor:
    """At least in single precision; complex numbers as pairs."""
    x = torch.view_as_real(x) if x.is_complex() else x
    return x if x.dtype.itemsize >= 4 else x.float()


def _ratio(above: float, below: float) -> float | None:
    found = above / below if below > 0 else math.nan
    return found if math.isfinite(found) else None
