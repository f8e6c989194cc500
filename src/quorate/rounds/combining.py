"""Aggregation of the vectors of a round other than by a sum: by an aggregation rule, or by a code.

The leader has all vectors of a round and combines them, also those of several hosts. The result stands in place of the
sum: it is divided by the weight that has arrived (`Agreed.divide_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from quorate.aggregation.cyclic_code import cyclic_code
from quorate.aggregation.distances import far_rows
from quorate.aggregation.outcome import Outcome
from quorate.aggregation.rows import Rows
from quorate.aggregation.rule import Rule, finite_rows, mixed_rows
from quorate.core.codec import Draw
from quorate.core.redundancy import Redundancy
from quorate.core.vectors import Flat, header_in


@dataclass(frozen=True)
class Combined:
    """The result of an aggregation."""

    vector: Flat | None = None  # None: there is no update
    excluded: Sequence[tuple[int, str]] = ()
    """Ranks whose vectors counted nothing, or hardly anything, and why (`records.rows`)."""


Combine = Callable[[Mapping[int, Flat], Mapping[int, float], int], Combined]
"""Called with the vectors by rank, their weights by rank, and the number of the round."""


@dataclass(frozen=True)
class ByRule:
    """Aggregate the vectors of a round by `rule`, in a world of `size` workers. There is no update with fewer vectors
    than the rule needs for its f. Vectors that are not finite count as wrong. Each vector was divided by `size` and
    multiplied by its weight. Cost: n^2 d products, and two passes over vectors."""

    rule: Rule
    size: int
    seed: int

    def __call__(self, vectors: Mapping[int, Flat], weights: Mapping[int, float], number: int) -> Combined:
        ranks = [rank for rank in sorted(vectors) if weights[rank] > 0]
        if len(ranks) < self.rule.least:
            return Combined()
        like = vectors[ranks[0]]
        counts = torch.tensor([weights[rank] / self.size for rank in ranks], dtype=torch.float64)
        rows = [Rows([vectors[rank].bare().parts[part] for rank in ranks], counts) for part in range(len(like.parts))]
        gram = sum(
            (part.products(is_exact=self.rule.is_exact) for part in rows),
            torch.zeros(len(ranks), len(ranks), dtype=torch.float64),
        )
        keep = finite_rows(gram)
        kept = [rank for rank, is_kept in zip(ranks, keep.tolist(), strict=True) if is_kept]
        wrong = [rank for rank in ranks if rank not in kept]
        if not kept:
            return Combined(None, tuple(Outcome(not_finite=wrong).excluded))
        rule = self.rule.with_f(max(0, self.rule.f - int((~keep).sum())))
        mixing = rule.mixing(gram[keep][:, keep], Draw(seed=self.seed, round=number))
        total = _headers_of([vectors[rank] for rank in sorted(vectors)])
        for part, into in zip(rows, total.bare().parts, strict=True):
            mixed_rows(part, keep.nonzero().flatten().tolist(), mixing, rule, [into])
            into.mul_(sum(weights.values()) / self.size)
        far = [kept[place] for place in far_rows(gram[keep][:, keep])] if self.rule.f else []
        mean = [1.0] * len(kept) if mixing is None else mixing.mean(0).tolist()
        shares = [0.0] * (max(ranks) + 1)
        for rank, weight in zip(kept, mean, strict=True):
            shares[rank] = weight
        absent = [rank for rank in range(len(shares)) if rank not in ranks]
        return Combined(total, tuple(Outcome(absent, wrong, far=far, weights=shares).excluded))


@dataclass(frozen=True)
class ByCode:
    """Decode the mean of all batches from the vectors of the workers that are not late. With groups each vector is the
    gradient of its group's batch, and one of each group is enough; else each is a combination by the cyclic code. There
    is no update where too many are missing."""

    redundancy: Redundancy
    size: int

    def __call__(self, vectors: Mapping[int, Flat], weights: Mapping[int, float], number: int) -> Combined:
        known, ranks, count = self.redundancy, sorted(vectors), self.redundancy.groups or self.size
        if known.groups:
            first = {known.group_of(rank, self.size): rank for rank in reversed(ranks)}
            counts = dict.fromkeys(first.values(), 1.0)
            if len(first) < known.groups:
                return Combined()
        else:
            decoded = cyclic_code(self.size, known.batches - 1).weights(ranks)
            if decoded is None:
                return Combined()
            counts = {rank: float(decoded[rank]) for rank in ranks}
        total = _headers_of([vectors[rank] for rank in ranks])
        share = sum(weights.values()) / count
        for rank in sorted(counts):
            total.bare().add_(vectors[rank].bare(), alpha=counts[rank] * share)
        return Combined(total)


def _headers_of(vectors: Sequence[Flat]) -> Flat:
    total = Flat.zeros(vectors[0].layout)
    for vector in vectors:
        header_in(total).add_(header_in(vector))
    return total


def combined(combine: Combine, contributions: Mapping[int, tuple[Flat | None, float]], number: int) -> Combined:
    """Return the aggregate of the contributions: by rank, a vector (or None) and its weight."""
    vectors = {rank: vector for rank, (vector, _) in contributions.items() if vector is not None}
    weights = {rank: contributions[rank][1] for rank in vectors}
    return combine(vectors, weights, number) if vectors else Combined()
