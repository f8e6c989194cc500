"""`quorate simulate --map`: which strategy is the best with which network, imbalance and number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.cli.learned import passes_of
from quorate.cli.simulate.results import Columns, Shown, begin, keep, show, tell_kept
from quorate.core.errors import QuorateError
from quorate.report.wording import ratios_alike
from quorate.simulation.grid import Row, simulated
from quorate.simulation.map_picture import map_of
from quorate.simulation.sweep import Best, Place, Sweep, swept

if TYPE_CHECKING:
    from quorate.cli.simulate.plan import SimulationPlan


def tell_map(plan: SimulationPlan, recorded: Sequence[Row], folder: Path, path: Path, *, as_json: bool) -> int:
    """Simulate all cells, draw the map into `path`, write and show which is best where; return the exit status."""
    from quorate.simulation.picture import picture

    grid = plan.grid
    begin(folder, plan.as_json)
    with Shown() as shown:
        rows = list(simulated(grid, shown))
    passes = {
        arm.text: factor for arm in grid.arms if (factor := passes_of(arm.text, arm.strategy, plan.learned)) is not None
    }
    sweep = swept(rows, [arm.text for arm in grid.arms], passes)
    measured = {Place(network=links.text, imbalance=row.imbalance, workers=row.workers): None
                for row in recorded for links in grid.networks}  # fmt: skip
    compute = f"compute {plan.asked.compute}, " if plan.asked.compute else ""
    said = f"{len(grid.arms)} strategies, {grid.parameters:,} parameters, {compute}{grid.steps} steps of times alone"
    drawn = map_of(sweep, "Which strategy is the best where", said, measured, path.suffix)
    results = {"rows": [row.as_json() for row in (*recorded, *rows)], "map": sweep.as_json()}
    about = keep(folder, None, results, lambda: picture(rows, plan.title, plan.about))
    try:
        path.write_bytes(drawn)
    except OSError as error:
        raise QuorateError(f"the map cannot be kept: {error.strerror or error} ({path})") from None
    places = dict.fromkeys((best.place.network, best.place.imbalance) for best in sweep.best)
    lines = (*_lines(sweep), f"map: {path}")
    tell_kept(about, folder, lambda: show(list(places), _columns(sweep)), lines, as_json=as_json)
    return 0


_Line = tuple[str, str | None]
"""A network and an imbalance: a line of the table."""


def _columns(sweep: Sweep) -> Columns[_Line]:
    counts = sorted({best.place.workers for best in sweep.best})
    by_place = {best.place: best for best in sweep.best}

    def cell(count: int) -> tuple[str, object]:
        def words(line: _Line) -> str:
            return _words(by_place[Place(network=line[0], imbalance=line[1], workers=count)])

        return f"{count:,} worker{'s' * (count > 1)}", words

    return [
        ("imbalance", lambda line: line[1] or "none"),
        ("network", lambda line: line[0]),
        *(cell(count) for count in counts),  # type: ignore[list-item]
    ]


def _words(best: Best) -> str:
    return best.strategy if abs(best.gain - 1) < 0.005 else f"{best.strategy} ({ratios_alike([best.gain])(best.gain)})"


def _lines(sweep: Sweep) -> Iterator[str]:
    unmeasured = [name for name in sweep.winners if name not in sweep.passes and name != sweep.strategies[0]]
    yield f"In parentheses: the rate over that of {sweep.strategies[0]}. All of it is simulated, not measured."
    if unmeasured:
        yield (
            f"caution: a step of {' or '.join(unmeasured)} is taken to be worth as much as one of "
            f"{sweep.strategies[0]}; measure it with quorate compare --target, and pass the comparison as --learned"
        )
