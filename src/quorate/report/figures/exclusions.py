"""Whose gradients were left out of means, why, and when."""

from __future__ import annotations

from quorate.report.reading.exclusions import left_out_of
from quorate.report.reading.run import RunRecords
from quorate.report.schema_exclusions import Exclusion, ExclusionsSummary

SHOWN = 200


def exclusions_of(run: RunRecords, seed: int) -> ExclusionsSummary | None:
    """As the ranks that were the first in turn have recorded it; None where nobody was left out."""
    found, sums = left_out_of(run)
    if not found or not run.has_steps:
        return None
    ranks = [
        Exclusion(
            rank=one.rank,
            why=one.why,
            count=one.count,
            share=one.count / sums,
            first=one.times[0],
            last=one.times[-1],
            times=tuple(one.times[:: -(-len(one.times) // SHOWN)]),
        )
        for one in found
    ]
    return ExclusionsSummary(seed=seed, sums=sums, ranks=tuple(ranks))
