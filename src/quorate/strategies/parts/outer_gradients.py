"""Outer gradients of learners as they are contributed and returned, plain or radial, and their weights by age."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.core.vectors import Flat

Late = Literal["carry", "cosine", "decay", "drop"]
NOBODY_WAITS = 1 << 20
"""The bound on how many rounds a learner may be behind."""
_WEIGHTS: dict[Late, str] = {"cosine": "gated", "decay": "falling"}


def deltas_of(contribution: Flat, size: int) -> list[torch.Tensor]:
    """Return the delta of a worker, by tensor, from its `contribution`."""
    *deltas, numbers = contribution.segments()
    weight, *norms = numbers.tolist()
    factors = [size / weight * (norm / weight if norm else 1.0) if weight else 0.0 for norm in norms]
    return [delta.reshape(-1) * factor for delta, factor in zip(deltas, factors, strict=True)]


def units_of_deltas(contribution: Flat, size: int) -> list[float]:
    """Return, by tensor, the ratio of a worker's `contribution` to the delta that it stands for."""
    weight, *norms = contribution.segment(-1).tolist()
    units = [weight / size * (weight / norm if norm else 1.0) if weight else 1.0 for norm in norms]
    return [*units, 1.0]


def laid_out_as(x: Flat, tensors: Sequence[torch.Tensor]) -> Flat:
    """`tensors`, one for each part of `x`, as a vector beside it."""
    return Flat([tensor.reshape(-1).to(to.device) for tensor, to in zip(tensors, x.parts, strict=True)], x.layout)


def merged_deltas(sums: Flat, size: int) -> list[torch.Tensor] | None:
    """Return the outer gradient of a fragment, by tensor, from the `sums` of contributions; None without a step.

    Plain: the mean by weights. Radial (Decoupled DiLoCo, after public descriptions): the mean of the directions by
    weights, made one long, times the mean of the norms by weights.
    """
    *deltas, numbers = sums.segments()
    total, *norms = numbers.tolist()
    if not total:
        return None
    units = []
    lengths = iter(values_of([torch.linalg.vector_norm(x) for x, norm in zip(deltas, norms, strict=True) if norm]))
    for x, norm in zip(deltas, norms, strict=True):
        length = next(lengths) if norm else 0.0
        if length:
            units.append(x * (norm / total / length))
        else:
            units.append(x * (size / total) if total != size else x.clone())
    return units


@dataclass(frozen=True, kw_only=True)
class LatenessSettings(Strategy):
    """The settings of `late="cosine"`.

    Cosine-gated decay (Shah and Sun, "Cosine-Gated Adam-Decay", 2026, arXiv 2605.09126): an outer gradient of age T
    enters the outer optimizer times

        sigma(T) = gamma(T) exp(-alpha T),    gamma(T) = (1 + cos(pi T / cutoff)) / 2 where T < cutoff, else 0

    With Adam for the outer optimizer that is theirs: plain Adam at T = 0, and its moments take in less of what is old.
    The abstract has the product, that it comes before the moments, and a cosine gate that is 0 past a cutoff. Only the
    abstract was at hand, so the formula of the gate and the defaults of `late_cutoff` and `late_alpha` are ours.
    """

    late_cutoff: float = 16.0
    """With `late="cosine"`: age in rounds from which an outer gradient has weight 0."""
    late_alpha: float = 0.1
    """With `late="cosine"`: rate alpha of the factor exp(-alpha T), which reduces the weight before that age, in
    addition to the gate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.late_cutoff < math.inf:
            raise ConfigurationError(f"late_cutoff is {self.late_cutoff}; it must be a number of rounds above 0")
        if not 0 <= self.late_alpha < math.inf:
            raise ConfigurationError(f"late_alpha is {self.late_alpha}; it must be a number (at least 0)")

    def late_terms(self, late: Late) -> dict[str, Any]:
        """Return the settings of rounds for late contributions."""
        return {
            "late": "drop" if late == "drop" else "carry",
            "late_weight": _WEIGHTS.get(late, "full"),
            "late_cutoff": self.late_cutoff,
            "late_alpha": self.late_alpha,
            "max_staleness": NOBODY_WAITS,
        }


def over_full_weights(sums: Flat, payloads: Mapping[int, Sequence[Mapping[str, Any]]], fragment: int) -> Flat:
    """Return the `sums` of contributions of a fragment with the weights that these had before they were late.

    So their mean is smaller by the factor of each late one, also if all are late.
    """
    *_, numbers = sums.segments()
    total = numbers[:1] * 0
    for _, own in sorted(payloads.items()):
        total += sum(payload["weights"][fragment] for payload in own[:1])
    if bool(total == numbers[0]):
        return sums
    corrected = sums.clone()  # the log of rounds has it as well
    corrected.segments()[-1][:1] = total
    return corrected
