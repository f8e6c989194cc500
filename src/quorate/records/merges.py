"""Merges of learners in rounds: the learners in each, with their weights and ages; pure.

A learner sends its weight for each fragment with its contribution (`told` of a `round` row). Round n merges fragment
(n - 1) mod K of K, or all fragments at a pause. The age of a contribution is the number of rounds of its fragment since
it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Merged(NamedTuple):
    """The learners in a merge."""

    shares: tuple[tuple[int, float, int], ...]
    """Triples of rank, share of the weight, and age."""
    fragment: int | None
    """Number of the fragment; None where all are merged."""


def merged_in(
    number: int, payloads: Mapping[int, Sequence[Any]], taken: Mapping[int, Sequence[Sequence[int]]], *, settles: bool
) -> Merged | None:
    """Return the merge of round `number`; None if nothing was merged, or weights are not those of learners.

    `payloads`, `taken` and `settles` are `told`, `contributors` and `settles` of the `round` row.
    """
    weights: dict[int, float] = {}
    fragments = 1
    for rank, listed_payloads in payloads.items():
        newest = listed_payloads[-1] if listed_payloads else None
        listed = newest.get("weights") if isinstance(newest, dict) else None
        if not isinstance(listed, list) or not all(isinstance(weight, int | float) for weight in listed) or not listed:
            return None
        fragments = len(listed)
        weights[rank] = sum(listed) / fragments if settles else listed[(number - 1) % fragments]
    total = sum(weights.values())
    if not total > 0:
        return None
    ages = {rank: gradients[-1][0] // fragments if gradients else 0 for rank, gradients in taken.items()}
    shares = tuple((rank, weight / total, ages.get(rank, 0)) for rank, weight in sorted(weights.items()) if weight)
    return Merged(shares, None if settles else (number - 1) % fragments)
