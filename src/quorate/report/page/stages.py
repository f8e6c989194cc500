"""Stages: the waiting of the workers of a pipeline for each other, and the bytes that they sent each other."""

from __future__ import annotations

from quorate.report.charts.markup import Markup
from quorate.report.page.parts import View, alike, framed, paragraphs, section, table
from quorate.report.schema import ArmSummary, StagesSummary
from quorate.report.schema_mesh import RankStages
from quorate.report.wording import bytes_alike, shares_alike

LEAD = (
    "Where a model is computed in stages, each worker waits for what the others make: at the beginning of a step for "
    "the first activations, at its end for the last gradients, and in between for the slowest stage."
)
MEANINGS = (
    "Of the first run. The bubble is the share of a step in which a worker waited for other stages, messages included; "
    "by formula it is that of equally long stages whose messages take no time. More than that says that stages are not "
    "equally long, that messages take long, or that processes take turns on too few cores."
)
RANKS = 64
"""The most ranks listed of each arm."""
_HEADS = [
    "strategy", "rank", "place in the pipeline", "schedule", "bubble", "by formula", "to other stages in a step",
    "from other stages in a step",
]  # fmt: skip


def stages(view: View) -> Markup:
    """Return the section, if some arm has a model in stages."""
    summaries = [(arm, arm.stages) for arm in view.summary.arms if arm.stages is not None]
    if not summaries:
        return Markup()
    entries = [(arm, summary, rank) for arm, summary in summaries for rank in summary.ranks[:RANKS]]
    figures = alike(
        [[rank.bubble, summary.formula, round(rank.bytes_out), round(rank.bytes_in)] for _, summary, rank in entries],
        [shares_alike, shares_alike, bytes_alike, bytes_alike],
    )
    rows = [[*_names(*cells), *row] for cells, row in zip(entries, figures, strict=True)]
    hidden = sum(max(0, len(summary.ranks) - RANKS) for _, summary in summaries)
    note = f"Further ranks: {hidden:,}; all of them are in the data." if hidden else ""
    return section("stages", "Stages", LEAD, framed(view, "Stages of each rank", table(_HEADS, rows),
                                                    paragraphs(MEANINGS, note)))  # fmt: skip


def _names(arm: ArmSummary, summary: StagesSummary, rank: RankStages) -> list[str]:
    how = f"{summary.schedule}, {summary.stages} stages, {summary.microbatches} micro-batches"
    return [arm.name, f"{rank.rank}", f"{rank.worker + 1} of {summary.workers}", how]
