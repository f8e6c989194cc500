"""The result of an outer step for its outer gradient: measured from what was applied, whatever the optimizer.

With d the outer gradient, s the outer step and lr the outer rate: rho is the cosine of d and the one before; the gain
<s, d> / (lr <d, d>) says how many times the plain step it went along d; what is transverse, |s - (<s, d> / <d, d>) d| /
(lr |d|), is momentum of former outer gradients that d does not share. `holding` chooses the momentum by the gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.vectors import Flat

NEWEST, NORM, SMOOTHED = "newest gradient", "its norm", "smoothed rho"
"""Keys of the memory beside the outer optimizer's own: the outer gradient before, in bfloat16, and a mean of rho."""
SHARE = 0.5
"""The weight of the newest rho in the smoothed one."""
BUFFER = "momentum_buffer"
"""The name under which SGD remembers its momentum."""
PIECE = 1 << 16
"""Numbers that are summed up in single precision."""
GRAIN = 1 / 4096
"""The least momentum that is chosen. Momenta are never 0, with which SGD would leave its momentum as it is."""


@dataclass(frozen=True)
class Measured:
    """Measures of one outer step; None if an outer gradient is 0 or not finite, and of rho in the first step."""

    norm: float
    """The norm of the outer gradient."""
    rho: float | None
    smoothed_rho: float | None
    gain: float | None
    transverse: float | None

    def as_row(self) -> dict[str, Any]:
        """Return the fields of `records.rows.Outer`."""
        return asdict(self)


def dot(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> float:
    """Return the inner product. Sums of pieces are added in double precision, so that their order hardly matters."""
    total = 0.0
    for x, y in zip(xs, ys, strict=True):
        kind = torch.float64 if torch.float64 in (_real(x).dtype, _real(y).dtype) else torch.float32
        pieces = zip(_real(x).reshape(-1).split(PIECE), _real(y).reshape(-1).split(PIECE), strict=True)
        sums = [torch.dot(x_piece.to(kind), y_piece.to(kind)) for x_piece, y_piece in pieces]
        total += float(torch.stack(sums).double().sum())
    return total


def of_optimizer(memory: dict[str, Any]) -> dict[str, Any]:
    """Return the part of `memory` that is the outer optimizer's own."""
    return {name: value for name, value in memory.items() if name not in (NEWEST, NORM, SMOOTHED)}


def correlated(gradient: Flat, square: float, memory: dict[str, Any]) -> tuple[float | None, float | None]:
    """rho and its smoothed value; `square` is <d, d>, and `memory` has `gradient` for the newest from now on."""
    rho: float | None = None
    if NEWEST in memory:
        before = [old.to(new.device) for old, new in zip(memory[NEWEST], gradient.parts, strict=True)]
        rho = _ratio(dot(gradient.parts, before), math.sqrt(square) * memory[NORM])
    memory[NEWEST] = [_real(part).to(torch.bfloat16, copy=True) for part in gradient.parts]
    memory[NORM] = math.sqrt(square)
    smoothed: float | None = memory.get(SMOOTHED)
    if rho is not None:
        rho = max(-1.0, min(1.0, rho))
        smoothed = rho if smoothed is None else (1 - SHARE) * smoothed + SHARE * rho
        memory[SMOOTHED] = smoothed
    return rho, smoothed


def measured(before: Flat, after: Flat, gradient: Flat, memory: dict[str, Any], rate: float) -> Measured:
    """Measure the outer step from `before`, which is written over, to `after` on `gradient`. Cost: some nine passes,
    as much as two steps of an optimizer."""
    square = dot(gradient.parts, gradient.parts)
    rho, smoothed = correlated(gradient, square, memory)
    for old, new in zip(before.parts, after.parts, strict=True):
        old.sub_(new)  # the step
    norm, share = math.sqrt(square), _ratio(dot(before.parts, gradient.parts), square)
    if share is None:
        return Measured(norm, rho, smoothed, None, None)
    before.add_(gradient, alpha=-share)
    transverse = math.sqrt(dot(before.parts, before.parts))
    return Measured(norm, rho, smoothed, share / rate, _ratio(transverse, rate * norm))


def holding(gradient: Flat, memory: dict[str, Any], gain: float, *, most: float, is_nesterov: bool) -> float:
    """The momentum at which an SGD step on `gradient` has the `gain`, or comes closest; above 0, and at most `most`.

    With b the momentum buffer and a = <b, d> / <d, d> the gain at momentum m is 1 + m a, and 1 + m (1 + m a) with
    Nesterov's; before there is a buffer 1, and 1 + m. Rounded to `GRAIN`, so that workers which sum up in another order
    have the same.
    """
    buffers, square = memory.get(BUFFER), dot(gradient.parts, gradient.parts)
    before = [old.to(new.device) for old, new in zip(buffers or (), gradient.parts, strict=False)]
    share = _ratio(dot(before, gradient.parts), square) if before else 0.0
    if share is None:
        return most
    momentum = _root(share, gain - 1) if is_nesterov else (gain - 1) / share if share > 0 else 0.0
    return max(GRAIN, min(most, round(momentum / GRAIN) * GRAIN))


def _root(a: float, wanted: float) -> float:
    """The least m with m + a m² = `wanted`, or where that is greatest."""
    under = max(0.0, 1 + 4 * a * wanted)
    return 2 * wanted / (1 + math.sqrt(under)) if under else -1 / (2 * a)


def _real(x: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(x) if x.is_complex() else x


def _ratio(above: float, below: float) -> float | None:
    share = above / below if below > 0 else math.nan
    return share if math.isfinite(share) else None
