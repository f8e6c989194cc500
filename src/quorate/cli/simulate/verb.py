"""`quorate simulate`: what strategies would do among many workers, from times alone or with real gradients."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quorate.cli.config import previewed
from quorate.cli.options import command
from quorate.cli.simulate.plan import SimulateOptions, SimulationPlan, planned
from quorate.cli.simulate.results import Shown, begin, check_lines, keep, table, tell_kept
from quorate.compare.plan import Arm, Comparison
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.run.folder import run_folder, usual_name
from quorate.launch.run.requests import status_after
from quorate.report.wording import listed, number_in_words, seconds_in_words
from quorate.simulation.grid import Grid, Row, SimulatedCell, simulated
from quorate.simulation.models import RoundTimes

if TYPE_CHECKING:
    from quorate.cli.simulate.failing import FailingPlan
    from quorate.report.reading.run import RunRecords
    from quorate.simulation.checked import Held


_LAST = 0.1
"""The share of the steps whose loss is reported."""


@command
def simulate(context: typer.Context, options: SimulateOptions) -> int:
    """Simulate strategies with up to 100,000 workers: rounds and steps per second, waiting, staleness, bytes.

    Simulates every combination of strategy, number of workers, imbalance and network. Nothing is measured, except what
    --like reads. With --failures it simulates failures of up to 10,000,000 workers.
    """
    if options.records:
        from quorate.cli.simulate.published import tell_records

        return tell_records(options)
    plan = _planned(options)
    folder = run_folder(options.name or usual_name("simulate"))
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None and (picture.suffix != ".svg" or not picture.parent.is_dir()):
        raise ConfigurationError(f"--picture {picture}: give a file name that ends in .svg, in a folder that exists")
    place = None if options.map is None else Path(options.map)
    if place is not None and (place.suffix not in (".png", ".svg") or not place.parent.is_dir()):
        raise ConfigurationError(f"--map {place}: give a file name that ends in .png or .svg, in a folder that exists")
    sentence = f"would simulate {plan.in_words}; in {folder}"
    if previewed(context, options, lambda: json.dumps(plan.as_json, indent=2) if options.as_json else sentence):
        return 0
    tell(f"quorate: simulating {plan.in_words}; figures and picture in {folder}\n")
    if not isinstance(plan, SimulationPlan):
        from quorate.cli.simulate.failing import tell_failing

        return tell_failing(plan, folder, picture, as_json=options.as_json)
    for name in plan.left_out:
        tell(f"quorate: left out: {name}, which exclude each other\n")
    if place is not None:
        from quorate.cli.simulate.sweep import tell_map

        return tell_map(plan, _recorded(plan)[1], folder, place, as_json=options.as_json)
    return tell_simulated(plan, folder, picture, as_json=options.as_json)


def _planned(options: SimulateOptions) -> SimulationPlan | FailingPlan:
    if options.failures is not None:
        from quorate.cli.simulate.failing import planned_failing  # imports numpy

        return planned_failing(options)
    return planned(options)


def tell_simulated(plan: SimulationPlan, folder: Path, also: Path | None, *, as_json: bool) -> int:
    """Simulate the plan, write and show the results; return the exit status."""
    from quorate.simulation.picture import picture

    grid = plan.grid
    begin(folder, plan.as_json)
    held, rows = _recorded(plan)
    if plan.comparisons:
        real_rows = rows_of(plan.comparisons, grid, folder)
        if isinstance(real_rows, int):
            return real_rows
        rows += real_rows
    else:
        with Shown() as shown:
            rows += list(simulated(grid, shown))
    cautions = _cautions(plan)
    results = {
        "rows": [row.as_json() for row in rows],
        "check": [figure.as_json() for figure in held],
        "cautions": cautions,
    }
    about = keep(folder, also, results, lambda: picture(rows, plan.title, plan.about))
    lines = (*check_lines(held), *(f"caution: {caution}" for caution in cautions))
    tell_kept(about, folder, lambda: table(rows), lines, as_json=as_json)
    return int(plan.asked.check and not all(figure.holds for figure in held))


def _recorded(plan: SimulationPlan) -> tuple[Sequence[Held], list[Row]]:
    """Return the recorded run against its simulation, and the row of the recorded run."""
    like = plan.grid.like
    if like is None:
        return (), []
    from quorate.simulation.checked import held_against, recorded_figures

    figures = recorded_figures(like)
    row = Row(
        strategy=like.times.name,
        workers=like.workers,
        imbalance=like.imbalance,
        network=like.links.text,
        figures=figures,
        is_recorded=True,
    )
    return held_against(like), [row]


def _cautions(plan: SimulationPlan) -> list[str]:
    grid, cautions = plan.grid, []
    if grid.like is not None and not plan.asked.networks:
        costs = [f"{seconds_in_words(links.latency)} ({links.text})" for links in grid.measured.values()]
        cautions.append(
            f"of its network a run tells one number, what a message of its size takes: {listed(costs)}; "
            "say --network for others"
        )
        unknown = dict.fromkeys(arm.text for arm in grid.arms if arm.times and arm.times.kind not in grid.measured)
        if unknown:
            cautions.append(
                f"the cost of exchanges of {listed(list(unknown))} was not recorded. Each message is taken to cost as "
                f"much as one of {grid.like.times.name}, which may be far off; pass such a run as another --like"
            )
    if grid.like is not None and max(grid.workers) > grid.like.workers:
        cautions.append("workers beyond those recorded are taken to be like them, in blocks of as many")
    cautions += _of_codecs(grid)
    return cautions


def _of_codecs(grid: Grid) -> list[str]:
    cautions = []
    for arm in grid.arms:
        if arm.reduction is not None and arm.cost.is_measured:
            rates = [number_in_words(1e-6 / seconds) for seconds in (arm.cost.encode, arm.cost.decode)]
            cautions.append(
                f"{arm.text} is taken to encode {rates[0]} and decode {rates[1]} million numbers a second, as was "
                "measured on one thread of this machine just now; say --coding for others"
            )
    idle = dict.fromkeys(
        cell.arm.text
        for cell in grid.cells()
        if cell.arm.reduction is not None and isinstance(cell.arm.times, RoundTimes) and not _in_pieces(grid, cell)
    )
    if idle:
        cautions.append(
            f"in rounds codes travel between hosts, and large contributions only: {listed(list(idle))} sends vectors "
            "whole; leave :mesh out of --network"
        )
    return cautions


def _in_pieces(grid: Grid, cell: SimulatedCell) -> bool:
    return cell.links.in_pieces(4 * (grid.parameters + cell.workers), cell.workers) is not None


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
    from quorate.simulation.checked import played_from
    from quorate.simulation.figures import figures_of

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
