"""Outer gradients of learners: plain or radial means, their weights by age, and late directions that are turned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.strategy import Strategy
from quorate.core.vectors import Flat
from quorate.strategies.parts.outer_steps import Pair, dots

Late = Literal["carry", "cosine", "decay", "drop", "root", "turn"]
NOBODY_WAITS = 1 << 20
"""The bound on how many rounds a learner may be behind."""
_WEIGHTS: dict[Late, str] = {"cosine": "gated", "decay": "falling", "root": "root"}


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


@dataclass(frozen=True)
class Turning:
    """The correction of a late outer gradient, tensor by tensor, by the momentum of the outer optimizer.

    HeLoCo (2026, arXiv 2606.00271), after a public description of its formulas. With d the outer gradient of a tensor,
    m the momentum in the unit of one outer gradient, and c the cosine between them:

        trust = share |d| / (|d| + kappa |m|)
        c >= aligned:  d stays as it is
        c < 0:         d - beta c |d| m / |m|,  beta = min(-opposed c trust, most)
        otherwise:     |d| w / |w|,  w = (1 - lambda) d / |d| + lambda m / |m|,  lambda = min(turned (1 - c) trust, 1)

    With beta = 1 the part of d against m is removed; as `most` is at most 1, it is never reversed. A tensor whose
    momentum is zero stays as it is. The sum of a round may have fresh outer gradients as well: the correction is
    weakened to the share of late ones, which is ours. Cost: three inner products per tensor, and no bytes.
    """

    aligned: float
    opposed: float
    turned: float
    kappa: float
    most: float
    share: float = 1.0

    def of(
        self, deltas: Sequence[torch.Tensor], momenta: Sequence[torch.Tensor], unit: float = 1.0
    ) -> list[torch.Tensor]:
        """Return the corrected outer gradients, by tensor.

        Args:
            deltas: Outer gradients, 1-D, by tensor; they are not written to.
            momenta: The momentum of each tensor, as many numbers, on any device; none before the first momentum.
            unit: The outer gradient is so many times `deltas`.
        """
        if not momenta:
            return list(deltas)
        pairs = list[Pair]()
        beside = [m.reshape(-1).to(d.device) for d, m in zip(deltas, momenta, strict=True)]
        for delta, momentum in zip(deltas, beside, strict=True):
            pairs += [([delta], [delta]), ([momentum], [momentum]), ([delta], [momentum])]
        products = iter(dots(*pairs))
        return [
            self._of_tensor(delta, momentum, math.sqrt(next(products)), math.sqrt(next(products)), next(products), unit)
            for delta, momentum in zip(deltas, beside, strict=True)
        ]

    def _of_tensor(
        self, d: torch.Tensor, m: torch.Tensor, length: float, size: float, product: float, unit: float
    ) -> torch.Tensor:
        if not 0 < length * size < math.inf:
            return d
        cosine, trust = product / (length * size), self.share * length * unit / (length * unit + self.kappa * size)
        if cosine >= self.aligned:
            return d
        if cosine < 0:
            beta = min(-self.opposed * cosine * trust, self.most)
            return d - m * (beta * cosine * length / size)
        share = min(self.turned * (1 - cosine) * trust, 1.0)
        norm = math.sqrt((1 - share) ** 2 + share**2 + 2 * share * (1 - share) * cosine)
        return (d * ((1 - share) / length) + m * (share / size)) * (length / norm)


@dataclass(frozen=True, kw_only=True)
class LatenessSettings(Strategy):
    """The settings of `late="cosine"` and `late="turn"`.

    Cosine-gated decay (Shah and Sun, "Cosine-Gated Adam-Decay", 2026, arXiv 2605.09126): an outer gradient of age T
    enters the outer optimizer times

        sigma(T) = gamma(T) exp(-alpha T),    gamma(T) = (1 + cos(pi T / cutoff)) / 2 where T < cutoff, else 0

    With Adam for the outer optimizer that is theirs: plain Adam at T = 0, and its moments take in less of what is old.
    The abstract has the product, that it comes before the moments, and a cosine gate that is 0 past a cutoff. Only the
    abstract was at hand, so the formula of the gate and the defaults of `late_cutoff` and `late_alpha` are ours.

    Turned directions are those of `Turning`. The published values of its five constants were not at hand: their
    defaults are unverified, and ours.
    """

    late_cutoff: float = 16.0
    """With `late="cosine"`: age in rounds from which an outer gradient has weight 0."""
    late_alpha: float = 0.1
    """With `late="cosine"`: rate alpha of the factor exp(-alpha T), which reduces the weight before that age, in
    addition to the gate."""
    late_aligned: float = 0.5
    """With `late="turn"`: cosine with the outer momentum from which on a tensor's late outer gradient is left as it
    is."""
    late_opposed: float = 1.0
    """With `late="turn"`: rate at which the part of a late outer gradient against the outer momentum is removed."""
    late_turned: float = 1.0
    """With `late="turn"`: rate at which a late outer gradient across the outer momentum is turned towards it."""
    late_kappa: float = 1.0
    """With `late="turn"`: weight of the length of the momentum; greater values leave short outer gradients as they
    are."""
    late_most: float = 1.0
    """With `late="turn"`: largest share of the opposed part that is removed, at most 1; it is never reversed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.late_cutoff < math.inf:
            raise ConfigurationError(f"late_cutoff is {self.late_cutoff}; it must be a number of rounds above 0")
        if not 0 <= self.late_alpha < math.inf:
            raise ConfigurationError(f"late_alpha is {self.late_alpha}; it must be a number (at least 0)")
        if not (-1 <= self.late_aligned <= 1 and 0 <= self.late_most <= 1):
            settings = f"late_aligned={self.late_aligned}, late_most={self.late_most}"
            raise ConfigurationError(
                f"{settings}: the first is a cosine, from -1 to 1, the second a share, from 0 to 1"
            )
        for name in ("late_opposed", "late_turned", "late_kappa"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be a number (at least 0)")

    def turning_of(self, late: Late, result: Mean) -> Turning | None:
        """Return the correction of the outer gradient of a round; None if all contributions to it are fresh."""
        if late != "turn" or not any(result.ages.values()):
            return None
        constants = self.late_aligned, self.late_opposed, self.late_turned, self.late_kappa, self.late_most
        return Turning(*constants, share=sum(age > 0 for age in result.ages.values()) / len(result.ages))

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
