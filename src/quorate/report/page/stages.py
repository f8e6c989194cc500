"""Stages: how long each worker of a pipeline waited for the others, and what they sent each other."""

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
"""That are listed of each arm, at most."""
_HEADS = [
    "strategy", "rank", "place in the pipeline", "schedule", "bubble", "by formula", "to other stages in a step",
    "from other stages in a step",
]  # fmt: skip


def stages(view: View) -> Markup:
    """Only where some arm has a model in stages."""
    known = [(arm, arm.stages) for arm in view.summary.arms if arm.stages is not None]
    if not known:
        return Markup()
    some = [(arm, told, one) for arm, told in known for one in told.ranks[:RANKS]]
    figures = alike(
        [[one.bubble, told.formula, round(one.bytes_out), round(one.bytes_in)] for _, told, one in some],
        [shares_alike, shares_alike, bytes_alike, bytes_alike],
    )
    rows = [[*_names(*one), *row] for one, row in zip(some, figures, strict=True)]
    hidden = sum(max(0, len(told.ranks) - RANKS) for _, told in known)
    note = f"Further ranks: {hidden:,}; all of them are in the data." if hidden else ""
    return section("stages", "Stages", LEAD, framed(view, "Stages of each rank", table(_HEADS, rows),
                                                    paragraphs(MEANINGS, note)))  # fmt: skip


def _names(arm: ArmSummary, told: StagesSummary, one: RankStages) -> list[str]:
    how = f"{told.schedule}, {told.stages} stages, {told.microbatches} micro-batches"
    return [arm.name, f"{one.rank}", f"{one.worker + 1} of {told.workers}", how]
