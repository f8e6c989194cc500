"""Merges of learners that never wait: who was in them, how much it counted, and how old it was."""

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
    """Only where some arm has learners."""
    known = [(arm, arm.merges) for arm in view.summary.arms if arm.merges is not None]
    if not known:
        return Markup()
    charts = [_chart(view, arm, found) for arm, found in known if len(found.shown) > 1]
    return section("merges", "Merges", LEAD, _table(view, known), *charts)


def _table(view: View, known: list[tuple[ArmSummary, MergesSummary]]) -> Markup:
    heads = ["strategy", "rank", "share of the weight", "mean age", "merges", "window, mean", "95% of windows below"]
    rows = []
    seconds = seconds_alike(one for _, found in known for one in (found.window_mean, found.window_p95))
    shares = shares_alike(share for _, found in known for _, share, _ in found.shares)
    ages = numbers_alike(age for _, found in known for _, _, age in found.shares)
    for arm, found in known:
        windows = [
            nothing("rounds have no window") if one is None else seconds(one)
            for one in (found.window_mean, found.window_p95)
        ]
        for place, (rank, share, age) in enumerate(found.shares):
            once = [arm.name, f"{found.count:,}", *windows] if place == 0 else ["", "", "", ""]
            rows.append([once[0], f"rank {rank}", shares(share), ages(age), *once[1:]])
    return framed(view, "Who was merged", table(heads, rows), paragraphs(MEANINGS))


def _chart(view: View, arm: ArmSummary, found: MergesSummary) -> Markup:
    ranks = sorted({rank for one in found.shown for rank, _, _ in one.given})
    lanes = {rank: lane for lane, rank in enumerate(ranks[:LANES])}
    dots = [
        MergeDots(one.time, [(lanes[rank], share, age > 0) for rank, share, age in one.given if rank in lanes])
        for one in found.shown
    ]
    shares = ", ".join(f"rank {rank} {share_in_words(share)}" for rank, share, _ in found.shares[:LANES])
    note = f"The last {len(dots)} of {found.count:,} merges." if found.count > len(dots) else ""
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
