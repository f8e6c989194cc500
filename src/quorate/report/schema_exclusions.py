"""What stands in the schema of `summary.json` about gradients that were left out."""

from __future__ import annotations

from quorate.report.schema_parts import Part


class Exclusion(Part):
    """Why a rank's gradients did not count, and when."""

    rank: int
    why: str
    """`not finite`, `outvoted`, `no weight`, `far`, or `absurd`."""
    count: int
    """In how many sums."""
    share: float
    """Of all sums of the run."""
    first: float
    """When it was first told of; seconds of training time."""
    last: float
    times: tuple[float, ...]
    """When it was told of; at most 200, evenly chosen."""


class ExclusionsSummary(Part):
    """Whose gradients rules, codes, or the watch over ordinary means left out, in the first run of an arm that ended
    well and in which any were."""

    seed: int
    sums: int
    """Means of all workers that the run formed."""
    ranks: tuple[Exclusion, ...]
    """By rank."""
