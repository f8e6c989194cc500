"""All that the report needs of one run, so that its rows need not stay in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.core.errors import ranks_in_words
from quorate.report.figures import throughput
from quorate.report.figures.arrival import arrival_of
from quorate.report.figures.exclusions import exclusions_of
from quorate.report.figures.goodput import Goodput, goodput_of, has_failed
from quorate.report.figures.lateness import skew_of
from quorate.report.figures.layers import layers_of
from quorate.report.figures.memory import memory_of
from quorate.report.figures.merges import MergeFigures, figures_of_merges
from quorate.report.figures.noise import NoiseFigures, noise_figures
from quorate.report.figures.outer import outer_points
from quorate.report.figures.quality import (
    Amounts,
    curve_of,
    distance_curve,
    final_quality,
    losses_of,
    time_to,
    went_wrong,
)
from quorate.report.figures.rounds import RoundFigures, figures_of_rounds
from quorate.report.figures.servers import ServerFigures, figures_of_servers
from quorate.report.figures.stages import stages_of
from quorate.report.figures.time_use import by_rank, spent_in, totals_of
from quorate.report.figures.timeline import timeline_of
from quorate.report.reading.events import standstill
from quorate.report.reading.joinings import comparable, seconds_to_join
from quorate.report.reading.meetings import meetings_of
from quorate.report.reading.planned import Planned
from quorate.report.reading.rounds import last_arrivals, wait_for_all
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.schema import (
    NOT_BEGUN,
    STOPPED,
    UNDER_WAY,
    Arrival,
    Curve,
    ExclusionsSummary,
    Fault,
    Joined,
    Lane,
    LayersSummary,
    Mark,
    MemorySummary,
    Outcome,
    OuterPoint,
    StagesSummary,
)


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One run in figures; None stands for what was not measured."""

    seed: int
    about: dict[str, Any]
    """`run.json`."""
    outcome: Outcome
    is_used: bool
    """Whether the run ended well, or is the only one, and its seed is in all arms."""
    is_apart: bool = False
    """Whether the run ended well, and other arms have none of its seed."""
    notes: tuple[str, ...]
    """Sentences about anything odd."""
    hosts: int
    """The number of hosts of its workers."""
    clock_uncertainty: float
    """The uncertainty of their clocks together at worst, in seconds; infinite if they were not compared."""
    batch: int | None
    quality: float | None
    time_to_target: float | None
    examples_per_second: float | None
    seconds: float | None
    examples: int | None
    no_wait_share: float | None
    bytes_per_step: float | None
    peak_bytes: int | None
    curve: Curve | None
    losses: Curve | None
    lengths: Sequence[float]
    """The seconds of steps, sorted."""
    totals: Sequence[float]
    """Seconds of steps by activity."""
    arrival: Arrival | None
    timeline: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    rounds: RoundFigures | None
    merges: MergeFigures | None
    """Merges of learners that never wait."""
    outer: Sequence[OuterPoint]
    """The figures of each outer step."""
    noise: NoiseFigures | None
    """The noise of gradients, if it was measured."""
    servers: ServerFigures | None
    """Servers, if parameters lie on them."""
    memory: MemorySummary | None
    exclusions: ExclusionsSummary | None
    layers: LayersSummary | None
    stages: StagesSummary | None
    distance: Curve | None
    """The distance between replicas."""
    faults: tuple[Fault, ...]
    """Workers that died and were outlived."""
    goodput: Goodput | None
    """The goodput, if workers failed."""
    joined: tuple[Joined, ...]
    """Workers that joined."""
    replica_curve: Curve | None
    """The mean quality of single replicas, if it was measured beside that of their mean."""


def figures_of(folder: Path, seed: int, plan: Planned) -> RunFigures:
    """Read one run of the plan and measure it."""
    run = read_run(folder)
    metric, warm_up = plan.metric, plan.warm_up_steps
    amounts = Amounts.of(run)
    curve = None if metric is None else curve_of(run, metric.name, seed, amounts)
    reached = None
    if metric is not None and plan.target is not None and curve is not None:
        reached = time_to(plan.target, curve, higher_is_better=metric.higher_is_better)
    window = throughput.window_of(run, warm_up)
    steps = run.after(warm_up)
    merged = run.merged()
    comparable_steps = comparable(steps, run.newcomers, [rank.distributed for rank in run.ranks])
    meetings = meetings_of(comparable_steps, is_together=wait_for_all(merged) if merged else None)
    warm = run.warm(warm_up)
    skew = skew_of(meetings, steps, warm, run.newcomers)
    arrival = None if skew is None else arrival_of(skew, seed)
    last = last_arrivals(merged) if merged else None
    spent = spent_in(meetings, last)
    shown = spent_in(meetings_of(warm), last)
    lanes, marks = timeline_of(by_rank(shown), None if arrival is None else arrival.slow_rank, merged)
    return RunFigures(
        seed=seed,
        about=run.about,
        outcome=_outcome(run, seed, plan),
        is_used=run.has_steps and (run.status == 0 or plan.is_single),
        notes=tuple(_notes(run, plan, is_measured=window is not None)),
        hosts=len({rank.start.get("host") for rank in run.ranks if rank.start}),
        clock_uncertainty=run.clock_uncertainty,
        batch=throughput.batch_of(run),
        quality=None if metric is None else final_quality(run, metric.name),
        time_to_target=reached,
        examples_per_second=None if window is None else window.examples_per_second,
        seconds=throughput.training_seconds(run),
        examples=throughput.examples_of(run),
        no_wait_share=None if window is None else window.no_wait_share,
        bytes_per_step=throughput.bytes_per_step(run, warm_up),
        peak_bytes=throughput.peak_bytes(run),
        curve=curve,
        losses=losses_of(run, seed, amounts),
        lengths=sorted(times.seconds for times in spent),
        totals=totals_of(spent),
        arrival=arrival,
        timeline=lanes,
        marks=marks,
        rounds=figures_of_rounds(merged, run.size, window, warm, spent, run.newcomers),
        merges=figures_of_merges([update.round for update in merged], run.training_seconds) if merged else None,
        outer=_outer(run),
        noise=_noise(run),
        servers=figures_of_servers({rank.rank: rank.served for rank in run.ranks}),
        memory=memory_of(run, seed),
        exclusions=exclusions_of(run, seed),
        layers=layers_of(run, seed),
        stages=stages_of(run, warm_up, seed),
        distance=distance_curve(run, seed, amounts),
        faults=_faults(run, seed),
        goodput=goodput_of(run) if has_failed(run) else None,
        joined=_joined(run, seed),
        replica_curve=None if metric is None else curve_of(run, f"replica_{metric.name}", seed, amounts),
    )


def _outer(run: RunRecords) -> Sequence[OuterPoint]:
    """Return the outer steps of the lowest rank that recorded any: all have the same."""
    rows = next((rank.outers for rank in run.ranks if rank.outers), [])
    return outer_points(rows, run.training_seconds) if run.has_steps else ()


def _noise(run: RunRecords) -> NoiseFigures | None:
    """Return the noise that the first ranks in turn have recorded."""
    rows = sorted((row for rank in run.ranks for row in rank.noises), key=lambda row: row.time)
    steps = [step for rank in run.ranks for step in rank.steps]
    return noise_figures(rows, steps, run.training_seconds) if run.has_steps and rows else None


def _faults(run: RunRecords, seed: int) -> tuple[Fault, ...]:
    if not run.has_steps:
        return ()
    return tuple(
        Fault(
            seed=seed,
            rank=death.rank,
            why=death.reason,
            seconds=run.training_seconds(death.time),
            round=death.round,
            standstill=standstill(death, run.steps),
            left=death.left,
        )
        for death in run.deaths
    )


def _joined(run: RunRecords, seed: int) -> tuple[Joined, ...]:
    if not run.has_steps:
        return ()
    return tuple(
        Joined(
            seed=seed,
            rank=joining.rank,
            replaced=None if replaced is None else replaced.rank,
            seconds=run.training_seconds(joining.time),
            round=joining.round,
            waited=seconds_to_join(joining, replaced, run.starts.get(joining.rank, {})),
            live=joining.live,
        )
        for joining, replaced in run.replacements
    )


def _outcome(run: RunRecords, seed: int, plan: Planned) -> Outcome:
    begun = {} if plan.is_single else {"why": UNDER_WAY if plan.is_under_way else STOPPED}
    outcome = run.outcome or (begun if run.folder.exists() else {"why": NOT_BEGUN})
    seconds = outcome.get("seconds")
    return Outcome(
        seed=seed,
        folder="." if run.folder == plan.folder else run.folder.relative_to(plan.folder).as_posix(),
        status=run.status,
        seconds=float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None,
        why=str(outcome["why"]) if outcome.get("why") else None,
    )


def _notes(run: RunRecords, plan: Planned, *, is_measured: bool) -> list[str]:
    notes = []
    metric = None if plan.metric is None else plan.metric.name
    wrong = went_wrong(run, metric)
    if wrong is not None:
        notes.append(wrong)
    missing = set(range(run.size)) - {rank.rank for rank in run.ranks if rank.steps}
    if missing and run.has_steps:
        left = "left no steps" if len(missing) < run.size else "left nothing"
        notes.append(f"{ranks_in_words(missing)} {left}")
    if run.has_steps and not is_measured:
        notes.append(f"it is too short to measure after a warm-up of {plan.warm_up_steps} steps")
    if run.has_steps and throughput.examples_of(run) is None:
        notes.append("its examples were not counted (its loader is not one of quorate.shard)")
    return notes
