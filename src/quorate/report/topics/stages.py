"""Stages: the waiting of the workers of a pipeline for each other, and the bytes that they sent each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.records.rows import Step
from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.figures.time_use import bubble_share
from quorate.report.parts import TableColumns, View, arms_table, framed, further, paragraphs
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, by_arm, data_of
from quorate.report.wording import bytes_alike, share_in_words, shares_alike
from quorate.sharding.stages.clock import bubble_by_formula

LEAD = (
    "In a pipeline each worker waits for the output of other stages. At the beginning of a step it waits for the first "
    "activations, at its end for the last gradients, and in between for the slowest stage."
)
MEANINGS = (
    "The first run. The bubble is the share of a step in which a worker waited for other stages, messages included. "
    "The formula is for stages of equal length and messages without cost. A larger measured bubble means that "
    "stages are not equally long, that messages take time, or that processes share too few cores."
)
RANKS = 64
"""The most ranks listed of each arm."""
_NAMED = 16
"""The most ranks of a pipeline that are named."""
_NUMBERS = ("workers", "worker", "stages", "microbatches")


class RankStages(Part):
    """One worker of a pipeline, in the mean over steps."""

    rank: int
    worker: int
    """Its place in the pipeline."""
    bubble: float
    """The share of a step in which it waited for other stages."""
    bytes_out: float
    """Bytes to other stages in a step."""
    bytes_in: float


class StagesSummary(Part):
    """The waiting of the workers of a pipeline for each other, in the first run of an arm that ended well."""

    seed: int
    schedule: str
    workers: int
    """Workers of a pipeline."""
    stages: int
    microbatches: int
    formula: float | None
    """The bubble of equal stages, by the published formula, if messages take no time."""
    ranks: tuple[RankStages, ...]


def stages_of(run: MeasuredRun) -> StagesSummary | None:
    """Return the stages of all ranks that have some of a model's, after the warm-up; None if none has."""
    pipelines = {rank.rank: about for rank in run.records.ranks if (about := _pipeline(rank.distributed)) is not None}
    ranks = [
        stages
        for rank, about in pipelines.items()
        if (stages := _of_rank(rank, about, run.steps.get(rank, []))) is not None
    ]
    if not ranks:
        return None
    about = pipelines[ranks[0].rank]
    return StagesSummary(
        seed=run.seed,
        schedule=about["schedule"],
        workers=about["workers"],
        stages=about["stages"],
        microbatches=about["microbatches"],
        formula=_formula(about),
        ranks=tuple(ranks),
    )


def _pipeline(distributed: dict[str, Any]) -> dict[str, Any] | None:
    about = distributed.get("pipeline")
    if not isinstance(about, dict) or not isinstance(about.get("schedule"), str):
        return None
    return about if all(type(about.get(name)) is int and about[name] >= 0 for name in _NUMBERS) else None


def _of_rank(rank: int, about: dict[str, Any], steps: Sequence[Step]) -> RankStages | None:
    bubble, counted = bubble_share(steps), [step for step in steps if step.bubble is not None]
    if bubble is None:
        return None
    return RankStages(
        rank=rank,
        worker=about["worker"],
        bubble=bubble,
        bytes_out=sum(step.stage_out or 0 for step in counted) / len(counted),
        bytes_in=sum(step.stage_in or 0 for step in counted) / len(counted),
    )


def _formula(about: dict[str, Any]) -> float | None:
    workers = about["workers"]
    if not workers or not about["microbatches"] or about["stages"] < workers:
        return None
    try:
        return bubble_by_formula(about["schedule"], workers, about["stages"] // workers, about["microbatches"])
    except ConfigurationError:
        return None  # a schedule of a later version


def _body(view: View, arms: Arms[StagesSummary]) -> Iterator[Markup]:
    rows = [(arm, summary, rank) for arm, summary in arms for rank in summary.ranks[:RANKS]]
    note = further("ranks", (len(summary.ranks) - RANKS for _, summary in arms))
    yield framed(view, "Stages by rank", arms_table(rows, _COLUMNS), paragraphs(MEANINGS, note))


def _schedule(stages: StagesSummary, rank: RankStages) -> str:
    return f"{stages.schedule}, {stages.stages} stages, {stages.microbatches} micro-batches"


def _in_words(stages: StagesSummary) -> str:
    each = ", ".join(f"rank {rank.rank} {share_in_words(rank.bubble)}" for rank in stages.ranks[:_NAMED])
    more = f" and {len(stages.ranks) - _NAMED} more ranks" if len(stages.ranks) > _NAMED else ""
    formula = "" if stages.formula is None else f" (by formula, for equal stages: {share_in_words(stages.formula)})"
    return (
        f"{stages.schedule} with {stages.microbatches} micro-batches; waiting for other stages: {each}{more}{formula}"
    )


_COLUMNS: TableColumns[StagesSummary, RankStages] = (
    ("rank", lambda stages, rank: f"{rank.rank}", None),
    ("place in the pipeline", lambda stages, rank: f"{rank.worker + 1} of {stages.workers}", None),
    ("schedule", _schedule, None),
    ("bubble", lambda stages, rank: rank.bubble, shares_alike),
    ("by formula", lambda stages, rank: stages.formula, shares_alike),
    ("to other stages per step", lambda stages, rank: round(rank.bytes_out), bytes_alike),
    ("from other stages per step", lambda stages, rank: round(rank.bytes_in), bytes_alike),
)
TOPIC = Topic(
    name="stages",
    title="Stages",
    lead=LEAD,
    part=StagesSummary,
    measure=stages_of,
    body=_body,
    markdown=lambda view, arms: by_arm("Stages", arms, _in_words),
    data={"stages": data_of("rank worker bubble bytes_out bytes_in", lambda summary: summary.ranks)},
)
