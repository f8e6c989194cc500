"""How far learners have gone, as it is handed in and comes back: outer gradients, plain or radial."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quorate.core.vectors import Flat


def ways_of(contribution: Flat, size: int) -> list[torch.Tensor]:
    """Return the delta of a worker, by tensor, from its `contribution`."""
    *ways, numbers = contribution.segments()
    weight, *norms = numbers.tolist()
    factors = [size / weight * (norm / weight if norm else 1.0) if weight else 0.0 for norm in norms]
    return [way.reshape(-1) * factor for way, factor in zip(ways, factors, strict=True)]


def units_of_ways(contribution: Flat, size: int) -> list[float]:
    """Return, by tensor, the ratio of a worker's `contribution` to the delta that it stands for."""
    weight, *norms = contribution.segment(-1).tolist()
    units = [weight / size * (weight / norm if norm else 1.0) if weight else 1.0 for norm in norms]
    return [*units, 1.0]


def laid_out_as(x: Flat, tensors: Sequence[torch.Tensor]) -> Flat:
    """`tensors`, one for each part of `x`, as a vector beside it."""
    return Flat([tensor.reshape(-1).to(to.device) for tensor, to in zip(tensors, x.parts, strict=True)], x.layout)


def merged_ways(sums: Flat, size: int) -> list[torch.Tensor] | None:
    """Return the outer gradient of a fragment, by tensor, from the `sums` of contributions; None without a step.

    Plain: the mean by weights. Radial (Decoupled DiLoCo, after public descriptions): the mean of the directions by
    weights, made one long, times the mean of the norms by weights.
    """
    *ways, numbers = sums.segments()
    total, *norms = numbers.tolist()
    if not total:
        return None
    units = []
    for x, norm in zip(ways, norms, strict=True):
        length = float(torch.linalg.vector_norm(x)) if norm else 0.0
        if length:
            units.append(x * (norm / total / length))
        else:
            units.append(x * (size / total) if total != size else x.clone())
    return units
