"""The part of the schema of `summary.json` about gradients that were left out."""

from __future__ import annotations

from quorate.report.schema_parts import Part


class Exclusion(Part):
    """The exclusions of a rank's gradients for one reason."""

    rank: int
    why: str
    """`not finite`, `outvoted`, `no weight`, `far`, or `absurd`."""
    count: int
    """The number of sums."""
    share: float
    """The share of all sums of the run."""
    first: float
    """The time of the first record, in seconds of training time."""
    last: float
    times: tuple[float, ...]
    """Times of records; at most 200, evenly chosen."""


class ExclusionsSummary(Part):
    """Gradients that rules, codes, or the watch over ordinary means left out.

    They are of the first run of an arm that ended well and has any.
    """

    seed: int
    sums: int
    """Means of all workers that the run formed."""
    ranks: tuple[Exclusion, ...]
    """By rank."""
