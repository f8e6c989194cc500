"""The interface of aggregation rules, which combine n vectors, at most f of them wrong, into one.

Every rule here has two steps. The first mixes whole vectors with weights that follow from their inner products alone
(an n x n matrix); the second works on each coordinate by itself. So a rule can be applied to vectors that lie in pieces
on several workers. Each worker computes the inner products of its pieces, the products are summed, and no vector is
gathered in full.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from quorate.aggregation.ordering import mean_in_order
from quorate.aggregation.rows import Rows, matrix
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A rule that makes one vector of n. A frozen dataclass: its fields are its settings; it has no state.

    Inputs are the rows of an (n, d) tensor of floats, on any device. Results are float32, or float64 for float64. A
    rule treats all rows alike: their order does not matter (but for `bucketing`, which draws).
    """

    f: int = 1
    """Number of arbitrary (Byzantine) vectors tolerated."""

    breakdown: ClassVar[str]
    """The breakdown point in words: the share of vectors that may be wrong."""
    is_exact: ClassVar[bool] = True
    """Whether products and sums are formed in float64, as for distances between vectors; else in float32, which is many
    times as fast."""
    compares_bits: ClassVar[bool] = False
    """Whether honest workers send equal vectors, so that codecs draw alike on all of them."""
    has_centre: ClassVar[bool] = False
    """Whether vectors are taken relative to the newest result."""

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ConfigurationError(f"f is {self.f}; it must be a count of vectors (at least 0)")

    @property
    def mixes(self) -> bool:
        """Whether vectors are mixed before they are combined."""
        return type(self).mixing is not Rule.mixing

    @property
    def is_linear(self) -> bool:
        """Whether `combine` returns the mean of mixed rows."""
        return type(self).combine is Rule.combine and type(self).middle is Rule.middle

    @property
    @abstractmethod
    def least(self) -> int:
        """Smallest number of vectors of which `f` may be wrong."""

    def check(self, count: int) -> None:
        """Raise `ConfigurationError` where `f` of `count` vectors are too many for this rule."""
        if count < self.least:
            most = self.most_of(count)
            able = f"up to {most}" if most >= 0 else "none"
            raise ConfigurationError(
                f"{self.name} takes {self.breakdown}: of {count} vectors {able} may be wrong, and f is {self.f}"
            )

    def most_of(self, count: int) -> int:
        """Return the greatest f for `count` vectors; -1 where they are too few for any f."""
        return max((f for f in range(count) if self.with_f(f).least <= count), default=-1)

    def with_f(self, f: int) -> Self:
        """Return the same rule for another f."""
        return dataclasses.replace(self, f=f)

    @property
    def name(self) -> str:
        """The name of the rule in sentences."""
        return type(self).__name__

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        """Return the weights (m, n; float64) of the vectors that `combine` takes; None: all vectors, unchanged.

        `gram` (n, n; float64) has the inner products of the vectors, relative to any point; with `has_centre` to the
        newest result.
        """
        return None

    def middle(self, count: int) -> tuple[int, int] | None:
        """Return the range of places, in the order of a coordinate's `count` mixed numbers, that `combine` averages.
        None: the mean of all, or another result."""
        return None

    def combine(self, rows: Sequence[Tensor], into: Tensor) -> None:
        """Combine m mixed vectors (c) into `into` (c), coordinate by coordinate. `rows` are not changed."""
        middle = self.middle(len(rows))
        if middle is None:
            torch.mean(matrix(rows), 0, out=into)
        else:
            mean_in_order(rows, *middle, into)


def mixed_rows(rows: Rows, keep: Sequence[int], weights: Tensor | None, rule: Rule, into: Sequence[Tensor]) -> None:
    """Apply `rule` to the rows (n, c) at `keep` and write the result to each vector (c) of `into`.

    The rows are mixed by `weights` (m, kept) first, and the centre is added. The vectors of `into` may be the rows
    themselves.
    """
    places, is_exact = list(keep), rule.is_exact
    if weights is None:
        middle = rule.middle(len(places))
        if middle is None:
            rows.write_combined(places, rule.combine, into)
        else:
            rows.write_middle(places, *middle, into)
    elif len(weights) == 1 and rule.is_linear:
        of_all = [0.0] * len(rows)
        for place, weight in zip(places, weights[0].tolist(), strict=True):
            of_all[place] = weight
        rows.write_weighed(of_all, into, is_exact=is_exact)
    else:
        rows.write_combined(
            places, lambda some, result: rule.combine(_selected(some, weights, is_exact=is_exact), result), into
        )


def _selected(rows: Sequence[Tensor], weights: Tensor, *, is_exact: bool) -> list[Tensor]:
    """Return unchanged rows where weights choose some, so that these keep their bits; else sums."""
    is_choice = bool(((weights == 0) | (weights == 1)).all()) and bool((weights.sum(1) == 1).all())
    if is_choice:
        return [rows[place] for place in weights.argmax(1).tolist()]
    whole = matrix(rows)
    weights = weights.to(whole.device)
    return list((weights @ whole.double()).to(whole.dtype) if is_exact else weights.to(whole.dtype) @ whole)


def finite_rows(gram: Tensor) -> Tensor:
    """Return which vectors are finite, by their inner products with themselves: (n) of bool."""
    return torch.isfinite(gram.diagonal())


def aggregated(rule: Rule, vectors: Tensor, centre: Tensor | None = None, draw: Draw | None = None) -> Tensor:
    """Combine the rows of `vectors` (n, d) into one (d). `centre` (d) is the newest result, for rules that need it.

    Rows that are not finite are left out first, and count as wrong: f falls by their number. Raises
    `ConfigurationError` for an f beyond the rule's breakdown point, and where no row is finite.
    """
    rule.check(len(vectors))
    whole = vectors if vectors.dtype == torch.float64 else vectors.float()
    rows = Rows(list(whole), centre=None if centre is None or not rule.has_centre else centre.to(whole))
    gram = rows.products(is_exact=rule.is_exact)
    kept = finite_rows(gram)
    if not bool(kept.any()):
        raise ConfigurationError(f"none of the {len(vectors)} vectors is finite")
    left = rule.with_f(max(0, rule.f - int((~kept).sum())))
    weights = left.mixing(gram[kept][:, kept], Draw() if draw is None else draw)
    result = torch.empty_like(whole[0])
    mixed_rows(rows, kept.nonzero().flatten().tolist(), weights, left, [result])
    return result
