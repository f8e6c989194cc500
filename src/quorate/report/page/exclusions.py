"""Exclusions: the ranks whose gradients rules and codes did not count, with reasons and times."""

from __future__ import annotations

from quorate.report.charts.markup import Markup
from quorate.report.charts.merges import MergeDots, merge_chart
from quorate.report.page.parts import View, alike, figure, framed, paragraphs, section, table
from quorate.report.schema import ArmSummary
from quorate.report.schema_exclusions import ExclusionsSummary
from quorate.report.wording import seconds_alike, share_in_words, shares_alike

LEAD = (
    "An aggregation rule forms the mean of gradients that may be wrong, and a code the mean of those that are not. "
    "What did not count, or hardly, is told here with the worker that sent it."
)
MEANINGS = (
    "Not finite: it had infinities, or what is no number. Outvoted: most of its group sent something else, or its code "
    "does not allow it. No weight: the rule chose others, which Krum does with nearly all. Far: it was more than three "
    "times as far from the others as they are from each other; a rule for coordinates trims most of it. Absurd: out of "
    "all proportion to its peers. A worker that is here in nearly every mean is wrong; one that is here now and then "
    "need not be."
)
LANES = 24
_HEADS = ["strategy", "rank", "why", "means", "of all", "first at", "last at"]


def exclusions(view: View) -> Markup:
    """Return the section, if some arm has left gradients out."""
    summaries = [(arm, arm.exclusions) for arm in view.summary.arms if arm.exclusions is not None]
    if not summaries:
        return Markup()
    pairs = [(arm, rank) for arm, summary in summaries for rank in summary.ranks]
    figures = alike(
        [[row.share, row.first, row.last] for _, row in pairs], [shares_alike, seconds_alike, seconds_alike]
    )
    rows = [
        [arm.name, f"rank {rank.rank}", rank.why, f"{rank.count:,}", *row]
        for (arm, rank), row in zip(pairs, figures, strict=True)
    ]
    charts = [
        _chart(view, arm, summary) for arm, summary in summaries if sum(len(row.times) for row in summary.ranks) > 1
    ]
    shown = framed(view, "Who was left out", table(_HEADS, rows), paragraphs(MEANINGS))
    return section("exclusions", "Left out", LEAD, shown, *charts)


def _chart(view: View, arm: ArmSummary, summary: ExclusionsSummary) -> Markup:
    lanes = {rank: lane for lane, rank in enumerate(sorted({row.rank for row in summary.ranks})[:LANES])}
    points = [(time, lanes[row.rank], row.share) for row in summary.ranks if row.rank in lanes for time in row.times]
    dots = [MergeDots(time, [(lane, share, False)]) for time, lane, share in sorted(points)]
    most = sorted(summary.ranks, key=lambda row: -row.count)[:5]
    words = ", ".join(f"rank {row.rank} {row.why} in {share_in_words(row.share)}" for row in most)
    return figure(
        view,
        f"Left out of {arm.name}",
        lambda width: merge_chart(
            [f"rank {rank}" for rank in lanes],
            dots,
            title="training time",
            width=width,
            label=f"When gradients were left out of the means of {arm.name}. Of all means: {words}.",
        ),
        note=f"Seed {summary.seed}. A dot is up to ten means; the larger, the more often in all.",
    )
