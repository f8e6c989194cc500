"""The part of the report that says who is slow: a sentence, figures by rank, a heat map."""

from __future__ import annotations

import statistics

from quorate.report.figures.lateness import Lateness, Skew
from quorate.report.schema import Arrival, RankArrival
from quorate.report.wording import ranks_named, seconds_in_words, share_in_words

ALIKE = 0.05
"""Step times that differ by no more than this share are alike."""


def arrival_of(skew: Skew, seed: int) -> Arrival:
    """As `summary.json` has it."""
    ranks = tuple(
        RankArrival(
            rank=one.rank,
            lateness_mean=one.mean,
            lateness_p95=one.p95,
            last_share=one.last_share,
            step_mean=one.step_mean,
        )
        for one in skew.ranks
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
    """What is to be said of who is slow, without a full stop."""
    if not skew.is_together:
        return _of_pace(skew)
    return _of_the_late(skew) if skew.slow else _of_nobody(skew)


def _of_the_late(skew: Skew) -> str:
    """`rank 3 arrives last in 97% of the steps, 182 ms after the first (median); its own step time ...`"""
    slow, many = skew.slow, len(skew.slow) > 1
    share = share_in_words(max(one.last_share for one in slow))
    late = seconds_in_words(statistics.median(one.median for one in slow))
    verb = "arrive last, or among the last, each in up to" if many else "arrives last in"
    return (
        f"{_names(slow, skew)} {verb} {share} of the steps, {late} after the first (median); "
        f"{'their' if many else 'its'} own step time, {_compared(skew)}"
    )


def _compared(skew: Skew) -> str:
    mine = statistics.fmean(one.step_mean for one in skew.slow)
    others = statistics.fmean(one.step_mean for one in skew.others)
    if abs(mine - others) <= ALIKE * others:
        return f"{seconds_in_words(mine)}, is like everyone's"
    return f"{seconds_in_words(mine)}, is not that of the others, {seconds_in_words(others)}"


def _of_nobody(skew: Skew) -> str:
    """No rank is late in most steps; one may be so now and then, more often than chance would have it."""
    least = statistics.median(one.mean for one in skew.ranks) + skew.step_matters
    often = [one for one in skew.ranks if one.is_often_last and one.mean > least]
    if not often:
        last = seconds_in_words(skew.last_median)
        return f"no rank is significantly slower; the last one to arrive is {last} after the first (median)"
    one = max(often, key=lambda one: one.mean)
    return (
        f"no rank is late in most steps, but rank {one.rank} is last in {share_in_words(one.last_share)} of them "
        f"({share_in_words(1 / len(skew.ranks))} by chance), {seconds_in_words(one.p95)} after the first at worst (p95)"
    )


def _of_pace(skew: Skew) -> str:
    """Where not everybody waits for everybody."""
    if not skew.slow:
        last = seconds_in_words(skew.last_median)
        return (
            "not everybody is waited for, and no rank is significantly longer at work on a step than the others; had "
            f"all begun each step together, the last would have arrived {last} after the first (median)"
        )
    mine = statistics.median(one.busy_median for one in skew.slow)
    others = statistics.median(one.busy_median for one in skew.others)
    verb = "are" if len(skew.slow) > 1 else "is"
    return (
        f"not everybody is waited for: {_names(skew.slow, skew)} {verb} at work on a step for {seconds_in_words(mine)} "
        f"(median), {mine / others:.2f} times as long as the others"
    )


def _names(ranks: tuple[Lateness, ...], skew: Skew) -> str:
    return ranks_named([one.rank for one in ranks], len(skew.ranks))
