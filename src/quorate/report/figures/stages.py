"""The waiting of the workers of a pipeline for each other, and the bytes that they sent each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.records.rows import Step
from quorate.report.figures.time_use import bubble_share
from quorate.report.reading.run import RunRecords
from quorate.report.schema_mesh import RankStages, StagesSummary
from quorate.sharding.stages.clock import bubble_by_formula

_NUMBERS = ("workers", "worker", "stages", "microbatches")


def stages_of(run: RunRecords, warm_up: int, seed: int) -> StagesSummary | None:
    """Return the stages of all ranks that have some of a model's, after the warm-up; None if none has."""
    pipelines = {rank.rank: about for rank in run.ranks if (about := _pipeline(rank.distributed)) is not None}
    after = run.after(warm_up)
    ranks = [
        stages
        for rank, about in pipelines.items()
        if (stages := _of_rank(rank, about, after.get(rank, []))) is not None
    ]
    if not ranks:
        return None
    about = pipelines[ranks[0].rank]
    return StagesSummary(
        seed=seed,
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
