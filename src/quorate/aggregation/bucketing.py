"""Bucketing: vectors are averaged in random groups before a rule is applied.

Idea: The vectors are divided into random groups of `size`, drawn again each time; a rule is applied to the means of the
groups. If workers have unlike data, the means of several honest workers differ less than their vectors do. A wrong
vector corrupts its group, so at most f of the n / size groups are wrong.

Cost: One product of a matrix with the vectors, and the rule's own cost for fewer vectors.

When it loses: With many wrong vectors, as each may spoil a different group: the rule has to tolerate f of n / size.

Paper: Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022,
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import mixed_gram
from quorate.aggregation.wrapped import Wrapping
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError


@register("bucketing")
@dataclass(frozen=True, kw_only=True)
class Bucketing(Wrapping):
    """A rule on the means of random groups of vectors."""

    rule: str = "median"
    size: int = 2
    """Number of vectors in a group."""

    breakdown: ClassVar[str] = "f of so many groups as its rule takes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise ConfigurationError(f"size is {self.size}; a group has vectors from 1 on")

    @property
    def least(self) -> int:
        return self.size * (self.inner.least - 1) + 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        count = len(gram)
        order = torch.randperm(count, generator=draw.generator(torch.device("cpu"), shared=True))
        groups = order.split(self.size)
        weights = torch.zeros(len(groups), count, dtype=torch.float64)
        for place, group in enumerate(groups):
            weights[place, group] = 1 / len(group)
        return self.behind(weights, self.inner.mixing(mixed_gram(gram, weights), draw))
