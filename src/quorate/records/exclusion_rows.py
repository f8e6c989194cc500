"""The row of a run's records that says whose gradients were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.records.rows import Row

NOT_FINITE, OUTVOTED, NO_WEIGHT, FAR, ABSURD = "not finite", "outvoted", "no weight", "far", "absurd"
"""Why: it has numbers that are none; it is not what most of its group sent, or not what its code allows; the rule chose
others; it was several times as far from the others as they are from each other, and a rule for coordinates trims most
of it; it was out of all proportion to its peers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded(Row):
    """Whose gradients did not count, or hardly, in some sums that followed each other; written by the first rank that
    is left, where there are any."""

    kind = "excluded"
    step: int
    time: float
    """When the last of these sums was there."""
    optimizer: str
    sums: int
    """How many there were."""
    ranks: Sequence[Sequence[int | str]]
    """Rank, why, and in how many of them."""
