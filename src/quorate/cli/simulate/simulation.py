"""The execution of `quorate simulate`: each row is simulated, written, drawn and shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.cli.simulate.keeping import begin, keep, tell_kept
from quorate.cli.simulate.plan import SimulationPlan
from quorate.report.wording import listed, number_in_words, seconds_in_words
from quorate.simulation.grid import Grid, Row, SimulatedCell, simulated
from quorate.simulation.models import RoundTimes

if TYPE_CHECKING:
    from quorate.simulation.checked import Held

_LONG = 0.05
"""Seconds that one worker's connection may be busy with one round before that is said."""


def tell(plan: SimulationPlan, folder: Path, also: Path | None, *, as_json: bool) -> int:
    """Simulate the plan, write and show the results; return the exit status."""
    from quorate.cli.simulate.results import Shown, check_lines, table
    from quorate.simulation.picture import picture

    grid = plan.grid
    begin(folder, plan.as_json)
    held, rows = _recorded(plan)
    if plan.comparisons:
        from quorate.cli.simulate.real import rows_of

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
                f"what exchanges of {listed(list(unknown))} cost was not recorded: each message is taken to cost what "
                f"one of {grid.like.times.name} did, which may be far off; give a run of that kind as another --like"
            )
    if grid.like is not None and max(grid.workers) > grid.like.workers:
        cautions.append("workers beyond those recorded are taken to be like them, in blocks of as many")
    cautions += _of_codecs(grid)
    leads = [cell for cell in grid.cells() if not cell.links.is_mesh and math.isfinite(cell.links.bandwidth)]
    rounds = [cell for cell in leads if isinstance(cell.arm.times, RoundTimes) and not _in_pieces(grid, cell)]
    if rounds:
        worst = max(rounds, key=lambda cell: (cell.workers, -cell.links.bandwidth))
        nbytes = 4.0 * (grid.parameters + worst.workers)
        seconds = (worst.workers - 1) * nbytes / worst.links.bandwidth
        if seconds > _LONG:
            cautions.append(
                f"rounds go through one worker: with {worst.workers:,} workers its connection is busy for "
                f"{seconds_in_words(seconds)} to tell one result"
            )
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
            "whole; say :per-host in --network"
        )
    return cautions


def _in_pieces(grid: Grid, cell: SimulatedCell) -> bool:
    return cell.links.in_pieces(4 * (grid.parameters + cell.workers), cell.workers) is not None
