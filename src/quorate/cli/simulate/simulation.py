"""`quorate simulate`, carried out: what came of each row is kept, drawn and shown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quorate.cli.simulate.plan import FORMAT, SimulationPlan
from quorate.core.errors import QuorateError
from quorate.launch.run.folder import write_run
from quorate.report.wording import listed, seconds_in_words
from quorate.simulation.grid import Row, simulated
from quorate.simulation.models import RoundTimes

if TYPE_CHECKING:
    from quorate.simulation.checked import Held

FILE, PICTURE = "simulate.json", "simulate.svg"
_LONG = 0.05
"""Seconds that one worker's connection may be busy with one round before that is said."""


def tell(plan: SimulationPlan, folder: Path, also: Path | None, *, as_json: bool) -> int:
    """Simulate it, keep and show what came of it; the exit status."""
    from quorate.cli.simulate.results import Shown, check_lines, table
    from quorate.simulation.picture import picture

    grid = plan.grid
    write_run(folder, None, {"format": FORMAT, "command": ["quorate", *sys.argv[1:]], **plan.as_json})
    (folder / "run.json").replace(folder / FILE)
    held, rows = _recorded(plan)
    if plan.comparisons:
        from quorate.cli.simulate.real import rows_of

        found = rows_of(plan.comparisons, grid, folder)
        if isinstance(found, int):
            return found
        rows += found
    else:
        with Shown() as shown:
            rows += list(simulated(grid, shown))
    about = json.loads((folder / FILE).read_text(encoding="utf-8"))
    cautions = _cautions(plan)
    about |= {"rows": [row.as_json() for row in rows], "check": [one.as_json() for one in held], "cautions": cautions}
    try:
        (folder / FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        drawn = picture(rows, plan.title, plan.about)
        for path in (folder / PICTURE, *([] if also is None else [also])):
            path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise QuorateError(f"what was simulated cannot be kept: {error.strerror or error} ({error.filename})") from None
    if as_json:
        typer.echo(json.dumps(about, indent=2))
    else:
        table(rows)
        for line in (*check_lines(held), *(f"caution: {one}" for one in cautions)):
            typer.echo(line)
        typer.echo(f"picture: {folder / PICTURE}\nfigures: {folder / FILE}")
    return int(plan.asked.check and not all(one.holds for one in held))


def _recorded(plan: SimulationPlan) -> tuple[Sequence[Held], list[Row]]:
    """The run that this is like, held against its simulation; and its own row."""
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
    """What a reader has to know."""
    grid, found = plan.grid, []
    if grid.like is not None and not plan.asked.networks:
        told = [f"{seconds_in_words(links.latency)} ({links.text})" for links in grid.measured.values()]
        found.append(
            f"of its network a run tells one number, what a message of its size takes: {listed(told)}; "
            "say --network for others"
        )
        unknown = dict.fromkeys(arm.text for arm in grid.arms if arm.times and arm.times.kind not in grid.measured)
        if unknown:
            found.append(
                f"what exchanges of {listed(list(unknown))} cost was not recorded: each message is taken to cost what "
                f"one of {grid.like.times.name} did, which may be far off; give a run of that kind as another --like"
            )
    if grid.like is not None and max(grid.workers) > grid.like.workers:
        found.append("workers beyond those recorded are taken to be like them, in blocks of as many")
    leads = [cell for cell in grid.cells() if not cell.links.is_mesh and math.isfinite(cell.links.bandwidth)]
    rounds = [cell for cell in leads if isinstance(cell.arm.times, RoundTimes)]
    if rounds:
        worst = max(rounds, key=lambda cell: (cell.workers, -cell.links.bandwidth))
        nbytes = 4.0 * (grid.parameters + worst.workers)
        seconds = (worst.workers - 1) * nbytes / worst.links.bandwidth
        if seconds > _LONG:
            found.append(
                f"rounds go through one worker: with {worst.workers:,} workers its connection is busy for "
                f"{seconds_in_words(seconds)} to tell one result"
            )
    return found
