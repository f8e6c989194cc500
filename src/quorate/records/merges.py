"""What a round of learners has merged: who is in it, with which weight and age; pure.

A learner tells its weight for each fragment with what it hands in (`told` of a `round` row). Round n is of fragment
(n - 1) mod K of K, unless all have settled in it: then it is of all. The age of what is merged is how many rounds of
its fragment had gone by since it was handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Merged(NamedTuple):
    """Who is in a merge."""

    given: tuple[tuple[int, float, int], ...]
    """By rank: share of the weight, and age."""
    fragment: int | None
    """None where it is of all."""


def merged_in(
    number: int, told: Mapping[int, Sequence[Any]], taken: Mapping[int, Sequence[Sequence[int]]], *, settles: bool
) -> Merged | None:
    """The merge of round `number`; None where nothing was merged, or weights are not those of learners.

    `told` and `taken` are what each rank told, and pairs of staleness and number of gradients that each gave.
    """
    weights: dict[int, float] = {}
    turns = 1
    for rank, words in told.items():
        newest = words[-1] if words else None
        listed = newest.get("weights") if isinstance(newest, dict) else None
        if not isinstance(listed, list) or not all(isinstance(weight, int | float) for weight in listed) or not listed:
            return None
        turns = len(listed)
        weights[rank] = sum(listed) / turns if settles else listed[(number - 1) % turns]
    total = sum(weights.values())
    if not total > 0:
        return None
    ages = {rank: given[-1][0] // turns if given else 0 for rank, given in taken.items()}
    given = tuple((rank, weight / total, ages.get(rank, 0)) for rank, weight in sorted(weights.items()) if weight)
    return Merged(given, None if settles else (number - 1) % turns)
