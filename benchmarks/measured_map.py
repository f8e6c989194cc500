"""Is the strategy that the simulator calls the fastest also the fastest among real workers?

    python benchmarks/measured_map.py [--quick] [--turns 3] [--cells 0 3] [--picture docs/pictures/measured-map.png]

`SIZE` parameters are trained by two or four processes, each on a host of its own: a network namespace, which needs root
on Linux. A step computes for `COMPUTE`, in which a worker sleeps, so that four fit on two cores. Cells are a network of
100 Mbit/s or 1 Gbit/s, two or four workers, and nobody late or one worker of all late by `LATE` in each step. In each
cell all strategies train in turns (A B C, B C A). The rate is that of steps of all workers while all are active.

The same cells, and those of up to 1,000 workers, are simulated. The picture is the map of `quorate simulate --map`,
with the fastest strategy of real runs in the second line of a measured cell. The bar compares speeds: in how many
measured cells is the simulator's choice at most 5 % slower, in real runs, than the fastest there?
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
from hosts import run_slowed, until_slow  # noqa: E402

from tests.support.hosts import Host, are_possible, hosts  # noqa: E402

SIZE = 250_000
COMPUTE, LATE = 0.020, "one-of:60ms"
STEPS, ALL = 40, (2, 4, 8, 64, 256, 1000)
NETWORKS = {"200us:100Mbit": "100mbit", "200us:1Gbit": "1gbit"}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "all-reduce": {},
    "all-reduce:compress=half": {"compress": "half"},
    "eager-majority": {},
    "eager-solo": {},
    "local-sgd:sync_every=8": {"sync_every": 8},
}


@dataclass(frozen=True)
class Cell:
    """The conditions of one comparison."""

    network: str
    imbalance: str | None
    workers: int

    @property
    def in_words(self) -> str:
        """The cell as text."""
        return f"{self.workers} workers, {self.network}, {self.imbalance or 'nobody late'}"


CELLS = [Cell(network, late, count) for network in NETWORKS for late in (None, LATE) for count in (2, 4)]


def train(cell: Cell, strategy: str, steps: int, seed: int, folder: str, world: Any) -> list[tuple[float, float]]:
    """Train on one worker; return begin and end of each step, by a clock that all processes share."""
    import torch

    import quorate
    from quorate.inject.imbalance import parse_imbalance

    torch.set_num_threads(1)
    late = None if cell.imbalance is None else parse_imbalance(cell.imbalance, seed=seed, size=world.size)
    model = torch.nn.Linear(SIZE // 250, 249)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = quorate.distribute(optimizer, model, strategy.partition(":")[0], **STRATEGIES[strategy])
    x = torch.ones(1, SIZE // 250)
    until_slow(folder, world)
    times = []
    for step in range(steps):
        begin = time.monotonic()
        time.sleep(COMPUTE + (0.0 if late is None else late.delay(world.rank, step, COMPUTE)))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((begin, time.monotonic()))
    optimizer.finish()
    return times


def rate_of(cell: Cell, strategy: str, steps: int, seed: int, on: Sequence[Host]) -> float:
    """Return the measured steps per second of all workers, as the simulator counts them."""
    from quorate.simulation.figures import figures_of
    from quorate.simulation.played import Played

    workers: Any = run_slowed(
        on[: cell.workers],
        NETWORKS[cell.network],
        lambda folder: partial(train, cell, strategy, steps, seed, folder),  # type: ignore[arg-type, return-value]
    )
    played = Played()
    for rank, times in enumerate(workers):
        for begin, end in times:
            played.step(rank, begin, end, end, end, end)
    return figures_of(played, cell.workers, steps).steps_per_second


def simulated_map(steps: int, seed: int) -> Any:
    """Return the simulated sweep."""
    from quorate.cli.simulate.plan import SimulateOptions, planned
    from quorate.simulation.grid import simulated
    from quorate.simulation.sweep import swept

    class Silent:
        def begins(self, number: int, of: int, cell: Any) -> Any:
            return lambda share: None

    options = SimulateOptions(
        strategies=list(STRATEGIES),
        sizes=",".join(map(str, ALL)),
        steps=steps,
        compute=f"constant:{1000 * COMPUTE:g}ms",
        imbalances=["none", LATE],
        networks=list(NETWORKS),
        coding="200M:1B",
        parameters=str(SIZE),
        seed=seed,
    )
    grid = planned(options).grid
    names = dict(zip((arm.text for arm in grid.arms), STRATEGIES, strict=True))
    rows = [replace(row, strategy=names[row.strategy]) for row in simulated(grid, Silent())]
    return swept(rows, list(STRATEGIES), {})


def main() -> int:
    """Measure, simulate, and draw."""
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=3, help="of all strategies in each cell (3)")
    parser.add_argument("--cells", type=int, nargs="*", default=list(range(len(CELLS))), help="only these, from 0")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the map into this .png or .svg")
    asked = parser.parse_args()
    from quorate.simulation.map_picture import map_of
    from quorate.simulation.sweep import Place, best_in_places

    turns, steps = (1, 20) if asked.quick else (asked.turns, STEPS)
    cells = [CELLS[place] for place in ((0, 2) if asked.quick else asked.cells)]
    report = record.Report("measured_map", {"turns": turns, "steps": steps, "cells": [c.in_words for c in cells]})
    sweep = simulated_map(STEPS, seed=0)
    names, real, losses = list(STRATEGIES), {}, []
    with hosts(max((cell.workers for cell in cells), default=0)) as on:
        for cell in cells if are_possible() else []:
            rates: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(turns):
                for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                    rates[name].append(rate_of(cell, name, steps, turn, on))
            medians = {name: median(values) for name, values in rates.items()}
            place = Place(network=cell.network, imbalance=cell.imbalance, workers=cell.workers)
            (real[place],) = best_in_places({place: medians}, names)
            foreseen = sweep.at(cell.network, cell.imbalance, cell.workers)
            for name, values in rates.items():
                report.rows.append(record.figure(f"{cell.in_words}: {name}: steps/s", values))
                shares = [foreseen.rates[name] / value for value in values]
                report.rows.append(record.figure(f"{cell.in_words}: {name}: simulated / real", shares))
            losses.append(medians[real[place].strategy] / medians[foreseen.strategy])
            words = f"simulated best {foreseen.strategy}, real best {real[place].strategy}, {losses[-1]:.2f}"
            print(f"{cell.in_words}: {words}", flush=True)
    within = sum(loss <= 1.05 for loss in losses) / len(losses) if losses else None
    report.bar("share of measured cells in which the simulator's choice is within 5 %", within, at_least=0.8)
    if asked.picture is not None:
        about = f"{SIZE:,} parameters, {1000 * COMPUTE:g} ms a step; second line: real processes"
        title = "Which strategy is the fastest, simulated and measured"
        asked.picture.write_bytes(map_of(sweep, title, about, real, asked.picture.suffix))
    return report.show(asked)


if __name__ == "__main__":
    sys.exit(main())
