"""The sentence about slow ranks: the same on the terminal, in the report, and at the end of a run."""

from __future__ import annotations

import statistics

from quorate.report.figures.lateness import Skew
from quorate.report.wording import ranks_named, seconds_in_words, share_in_words


def slow_ranks_in_words(skew: Skew) -> str:
    """Name the slow ranks, and how slow they are, without a full stop.

    If all workers wait for each other, `rank 3 arrived last in 97% of the steps, 182 ms after the first`; otherwise
    `rank 2 needs 139 ms per step, 3.6x the others`. Times are medians.
    """
    slow, is_single = skew.slow, len(skew.slow) == 1
    if not slow:
        return "no rank is significantly slower than the others"
    ranks = ranks_named([rank.rank for rank in slow], len(skew.ranks))
    if skew.is_together:
        share = share_in_words(max(rank.last_share for rank in slow))
        late = seconds_in_words(statistics.median(rank.median for rank in slow))
        arrived = "arrived last in" if is_single else "arrived last, or among the last, in up to"
        return f"{ranks} {arrived} {share} of the steps, {late} after the first"
    seconds = statistics.median(rank.busy_median for rank in slow)
    ratio = seconds / statistics.median(rank.busy_median for rank in skew.others)
    return f"{ranks} {'needs' if is_single else 'need'} {seconds_in_words(seconds)} per step, {ratio:.1f}x the others"
