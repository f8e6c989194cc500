"""The part of the report about slow ranks: a sentence, figures by rank, a heat map."""

from __future__ import annotations

import statistics

from quorate.report.figures.lateness import Lateness, Skew
from quorate.report.schema import Arrival, RankArrival
from quorate.report.wording import ranks_named, seconds_in_words, share_in_words

ALIKE = 0.05
"""Step times that differ by no more than this share are alike."""


def arrival_of(skew: Skew, seed: int) -> Arrival:
    """Return the arrival of a run for `summary.json`."""
    ranks = tuple(
        RankArrival(
            rank=rank.rank,
            lateness_mean=rank.mean,
            lateness_p95=rank.p95,
            last_share=rank.last_share,
            step_mean=rank.step_mean,
        )
        for rank in skew.ranks
    )
    return Arrival(
        seed=seed,
        is_together=skew.is_together,
        ranks=ranks,
        slow_rank=skew.slow[0].rank if skew.slow else None,
        sentence=sentence_of(skew),
        steps=skew.columns,
        heat=skew.heat,
    )


def sentence_of(skew: Skew) -> str:
    """Return the sentence about slow ranks, without a full stop."""
    if not skew.is_together:
        return _of_pace(skew)
    return _of_the_late(skew) if skew.slow else _of_nobody(skew)


def _of_the_late(skew: Skew) -> str:
    """Write `rank 3 arrives last in 97% of the steps, 182 ms after the first (median); its own step time ...`"""
    slow, many = skew.slow, len(skew.slow) > 1
    share = share_in_words(max(rank.last_share for rank in slow))
    late = seconds_in_words(statistics.median(rank.median for rank in slow))
    verb = "arrive last, or among the last, each in up to" if many else "arrives last in"
    return (
        f"{_names(slow, skew)} {verb} {share} of the steps, {late} after the first (median); "
        f"{'their' if many else 'its'} own step time, {_compared(skew)}"
    )


def _compared(skew: Skew) -> str:
    slow_mean = statistics.fmean(rank.step_mean for rank in skew.slow)
    others_mean = statistics.fmean(rank.step_mean for rank in skew.others)
    if abs(slow_mean - others_mean) <= ALIKE * others_mean:
        return f"{seconds_in_words(slow_mean)}, is like everyone's"
    return f"{seconds_in_words(slow_mean)}, is not that of the others, {seconds_in_words(others_mean)}"


def _of_nobody(skew: Skew) -> str:
    least = statistics.median(rank.mean for rank in skew.ranks) + skew.step_matters
    often = [rank for rank in skew.ranks if rank.is_often_last and rank.mean > least]
    if not often:
        last = seconds_in_words(skew.last_median)
        return f"no rank is significantly slower; the last one to arrive is {last} after the first (median)"
    worst = max(often, key=lambda worst: worst.mean)
    return (
        f"no rank is late in most steps, but rank {worst.rank} is last in {share_in_words(worst.last_share)} of them "
        f"({share_in_words(1 / len(skew.ranks))} by chance), {seconds_in_words(worst.p95)} after the first at worst "
        "(p95)"
    )


def _of_pace(skew: Skew) -> str:
    if not skew.slow:
        last = seconds_in_words(skew.last_median)
        return (
            "not everybody is waited for, and no rank is significantly longer at work on a step than the others; had "
            f"all begun each step together, the last would have arrived {last} after the first (median)"
        )
    slow_median = statistics.median(rank.busy_median for rank in skew.slow)
    others_median = statistics.median(rank.busy_median for rank in skew.others)
    verb = "are" if len(skew.slow) > 1 else "is"
    seconds = seconds_in_words(slow_median)
    return (
        f"not everybody is waited for: {_names(skew.slow, skew)} {verb} at work on a step for {seconds} "
        f"(median), {slow_median / others_median:.2f} times as long as the others"
    )


def _names(ranks: tuple[Lateness, ...], skew: Skew) -> str:
    return ranks_named([rank.rank for rank in ranks], len(skew.ranks))
