"""Gradients that were left out of means: of which ranks, why, and when."""

from __future__ import annotations

from quorate.report.reading.exclusions import left_out_of
from quorate.report.reading.run import RunRecords
from quorate.report.schema_exclusions import Exclusion, ExclusionsSummary

SHOWN = 200


def exclusions_of(run: RunRecords, seed: int) -> ExclusionsSummary | None:
    """Return the exclusions that the first ranks in turn have recorded; None without exclusions."""
    exclusions, sums = left_out_of(run)
    if not exclusions or not run.has_steps:
        return None
    ranks = [
        Exclusion(
            rank=exclusion.rank,
            why=exclusion.why,
            count=exclusion.count,
            share=exclusion.count / sums,
            first=exclusion.times[0],
            last=exclusion.times[-1],
            times=tuple(exclusion.times[:: -(-len(exclusion.times) // SHOWN)]),
        )
        for exclusion in exclusions
    ]
    return ExclusionsSummary(seed=seed, sums=sums, ranks=tuple(ranks))
