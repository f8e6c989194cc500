"""The row of the workers whose gradients were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.records.rows import Row

NOT_FINITE, OUTVOTED, NO_WEIGHT, FAR, ABSURD = "not finite", "outvoted", "no weight", "far", "absurd"
"""Reasons to exclude a gradient.
`NOT_FINITE`: it has infinite numbers or NaN. `OUTVOTED`: it differs from that of most of its group, or is impossible in
its code. `NO_WEIGHT`: the rule chose others. `FAR`: its distance from the others is several times theirs from each
other, and a rule for coordinates trims most of it. `ABSURD`: it was out of all proportion to its peers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded(Row):
    """The ranks whose gradients hardly counted in consecutive sums; the lowest living rank writes it, if any."""

    kind = "excluded"
    step: int
    time: float
    """Time at which the last of these sums was complete."""
    optimizer: str
    sums: int
    """Number of these sums."""
    ranks: Sequence[Sequence[int | str]]
    """Triples of rank, reason, and number of sums."""
