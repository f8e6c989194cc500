"""Merges of learners that never wait: members, weights and ages."""

from __future__ import annotations

from quorate.report.charts.markup import Markup
from quorate.report.charts.merges import MergeDots, merge_chart
from quorate.report.page.parts import View, figure, framed, nothing, paragraphs, section, table
from quorate.report.schema import ArmSummary
from quorate.report.schema_parts import MergesSummary
from quorate.report.wording import numbers_alike, seconds_alike, share_in_words, shares_alike

LEAD = (
    "Learners that never wait hand in how far they have gone, and an outer step merges what is there. Each counts by "
    "what it has done since its last merge; what misses a merge of its fragment is in the next, and that much older."
)
MEANINGS = (
    "Weights are shares of each merge, added up over all of them. The age of what was merged is how many rounds of its "
    "fragment had gone by since it was handed in. The window is what a round waited for more learners than it needed."
)
LANES = 24


def merges(view: View) -> Markup:
    """Return the section, if some arm has learners."""
    summaries = [(arm, arm.merges) for arm in view.summary.arms if arm.merges is not None]
    if not summaries:
        return Markup()
    charts = [_chart(view, arm, summary) for arm, summary in summaries if len(summary.shown) > 1]
    return section("merges", "Merges", LEAD, _table(view, summaries), *charts)


def _table(view: View, summaries: list[tuple[ArmSummary, MergesSummary]]) -> Markup:
    heads = ["strategy", "rank", "share of the weight", "mean age", "merges", "window, mean", "95% of windows below"]
    rows = []
    seconds = seconds_alike(
        seconds_of_window for _, summary in summaries for seconds_of_window in (summary.window_mean, summary.window_p95)
    )
    shares = shares_alike(share for _, summary in summaries for _, share, _ in summary.shares)
    ages = numbers_alike(age for _, summary in summaries for _, _, age in summary.shares)
    for arm, summary in summaries:
        windows = [
            nothing("rounds have no window") if window is None else seconds(window)
            for window in (summary.window_mean, summary.window_p95)
        ]
        for place, (rank, share, age) in enumerate(summary.shares):
            once = [arm.name, f"{summary.count:,}", *windows] if place == 0 else ["", "", "", ""]
            rows.append([once[0], f"rank {rank}", shares(share), ages(age), *once[1:]])
    return framed(view, "Who was merged", table(heads, rows), paragraphs(MEANINGS))


def _chart(view: View, arm: ArmSummary, summary: MergesSummary) -> Markup:
    ranks = sorted({rank for merge in summary.shown for rank, _, _ in merge.given})
    lanes = {rank: lane for lane, rank in enumerate(ranks[:LANES])}
    dots = [
        MergeDots(merge.time, [(lanes[rank], share, age > 0) for rank, share, age in merge.given if rank in lanes])
        for merge in summary.shown
    ]
    shares = ", ".join(f"rank {rank} {share_in_words(share)}" for rank, share, _ in summary.shares[:LANES])
    note = f"The last {len(dots)} of {summary.count:,} merges." if summary.count > len(dots) else ""
    if len(ranks) > LANES:
        note += f" {LANES} of {len(ranks)} ranks."
    return figure(
        view,
        f"Merges of {arm.name}",
        lambda width: merge_chart(
            [f"rank {rank}" for rank in lanes],
            dots,
            title="training time",
            width=width,
            label=f"Merges of {arm.name} over time. Shares of the weight: {shares}.",
        ),
        note=note.strip(),
    )
