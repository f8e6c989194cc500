"""Simulation with real gradients: comparisons in the virtual world, one for all strategies of equal workers."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.cli.compare.comparison import check_plan, metric_from, subject_from
from quorate.cli.simulate.options import SimulateOptions
from quorate.compare.plan import Arm, Comparison
from quorate.core.errors import ConfigurationError
from quorate.launch.run.requests import status_after
from quorate.simulation.grid import Grid, Row

if TYPE_CHECKING:
    from quorate.report.reading.run import RunRecords

_LAST = 0.1
"""The share of the steps whose loss is told."""


def comparisons_of(asked: SimulateOptions, grid: Grid) -> tuple[Comparison, ...]:
    """Return a checked comparison for each number of workers, imbalance and network. Raises `ConfigurationError`."""
    assert asked.real is not None
    subject = subject_from(asked.real, (), asked.workload_settings)
    wrong = next((text for text in asked.networks if not text.endswith(":mesh")), None)
    if wrong is not None:
        raise ConfigurationError(
            f'--network "{wrong}": in the virtual world every two workers have a link of their own; write it as '
            "LATENCY:BANDWIDTH:mesh, such as 50us:10Gbit:mesh"
        )
    comparisons = [
        Comparison(
            subject=subject,
            metric=metric_from(subject, None, None),
            workers=workers,
            world="virtual",
            arms=[Arm(name=arm.text, strategy=arm.strategy, settings=arm.settings) for arm in grid.arms],
            seeds=(grid.seed,),
            epochs=asked.epochs,
            imbalance=imbalance,
            pace=grid.pace,
            compute=asked.compute,
            latency=links.latency,
            bandwidth=links.bandwidth,
            batch=asked.batch,
            evaluations=1,
        )
        for links in grid.networks
        for imbalance in grid.imbalances
        for workers in grid.workers
    ]
    for plan in comparisons:
        check_plan(plan)
    return tuple(comparisons)


def rows_of(plans: Sequence[Comparison], grid: Grid, folder: Path) -> list[Row] | int:
    """Run the comparisons; return their rows, or the exit status after an interrupt or a failure."""
    from quorate.cli.compare.progress import CompareProgress
    from quorate.compare.execute import Interrupt, asking, execute
    from quorate.launch.warm.run_server import RunServer

    interrupt, rows = Interrupt(), []
    texts = [links.text for links in grid.networks for _ in grid.imbalances for _ in grid.workers]
    command = ["quorate", *sys.argv[1:]]
    with asking(interrupt), RunServer() as server:
        for number, (plan, network) in enumerate(zip(plans, texts, strict=True)):
            place = folder / f"real-{number + 1}-workers-{plan.workers}"
            plan.write(place, command)
            began = time.perf_counter()
            with CompareProgress(plan, interrupt, server) as progress:
                done = execute(plan, place, command, server, progress, interrupt)
            if done.is_interrupted:
                return status_after(interrupt.signum)
            if any(done.statuses):
                return 1
            seconds = (time.perf_counter() - began) / len(plan.arms)
            rows += [_row(plan, arm, place / arm.name / f"seed-{grid.seed}", network, seconds) for arm in plan.arms]
    return rows


def _row(plan: Comparison, arm: Arm, folder: Path, network: str, seconds: float) -> Row:
    from quorate.compare.grid import final_quality
    from quorate.report.reading.run import read_run
    from quorate.simulation.figures import figures_of
    from quorate.simulation.recorded import played_from

    run = read_run(folder)
    steps = max(len(records.steps) for records in run.ranks)
    together = all(step.contributors == plan.workers for records in run.ranks for step in records.steps)
    return Row(
        strategy=arm.name,
        workers=plan.workers,
        imbalance=plan.imbalance,
        network=network,
        figures=figures_of(played_from(run, has_means=together), plan.workers, steps),
        loss=_last_loss(run),
        quality=None if plan.metric is None else final_quality(folder, plan.metric),
        wall_seconds=seconds,
    )


def _last_loss(run: RunRecords) -> float | None:
    losses = [
        step.loss
        for records in run.ranks
        for step in records.steps[-max(1, int(_LAST * len(records.steps))) :]
        if step.loss is not None
    ]
    return statistics.fmean(losses) if losses else None
