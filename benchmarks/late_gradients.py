"""What do late gradients cost in quality, by learning rate, where each worker keeps the momentum of its own?

Four and eight workers with steps of 5 ms and a pause of up to 30 ms, drawn anew in each; with one worker three times
slower; and with bursts, in which a worker now and then pauses for 300 ms. A regression, `digits`, and a small
`stdlib-bytes` with a cosine schedule; SGD without momentum, with momentum, with Nesterov's, and AdamW. All take equally
many steps, and the held-out loss in the end is held against that of all-reduce: each side at its best rate, and at
equal rates up to a third of the one that is best for all-reduce. Beside it, without a bar, `momentum="common"`: the
momentum of the shared optimizer, which takes in gradients that are late.

The same when the first worker has made its last step stands beside it: rounds after that are of fewer and fewer
workers, in the end of one that is alone with the noise of its own gradients.

Losses are medians over seeds, of virtual workers, so they do not depend on how busy the machine is. Real workers train
the regression at one rate, to show that the virtual ones tell the truth.

`--kept FILE` keeps each training's losses as they come, and takes from there what is there; `--picture FILE` draws the
loss by learning rate as SVG.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import late_gradients_picture
import late_trainings as late
import record
from late_trainings import ADAMW, HEAVY_BALL, NESTEROV, PLAIN, Losses, Training
from workers import json_lines

SEEDS = (0, 1, 2)
GOOD = 1.1
"""The ratio to all-reduce at equal rates that is held up to a third of its best one."""
BEST = {late.MAJORITY: 1.05, late.THREE: 1.05}
BEST_OF_SOLO = {4: 1.15, 8: 1.4}
BARRED = (late.MAJORITY, late.THREE, late.SOLO)
ALL = (late.ALL_REDUCE, *BARRED)
UNBARRED = (late.SOLO_COMMON,)
RANDOM, SLOW, BURSTS = late.PAUSES


@dataclass(frozen=True)
class Grid:
    """Sides and rates of one optimizer in one place."""

    task: str
    workers: int
    pauses: str
    optimizer: str
    sides: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        return f"{self.task}, {self.workers} workers, {self.pauses}, {self.optimizer}"

    def trainings(self, seeds: Sequence[int]) -> Iterator[Training]:
        for seed in (seed for seed in self.seeds if seed in seeds):
            for side in self.sides:
                pauses = RANDOM if side == late.ALL_REDUCE else self.pauses  # all-reduce waits for everyone anyway
                yield Training(self.task, self.workers, pauses, self.optimizer, side, seed, self.rates)


BOTH_COMMON = (late.MAJORITY_COMMON, late.SOLO_COMMON)
GRIDS = (
    Grid(late.REGRESSION, 4, RANDOM, PLAIN, ALL, (0.003, 0.01, 0.03, 0.06, 0.1)),
    Grid(late.REGRESSION, 4, RANDOM, HEAVY_BALL, (*ALL, *BOTH_COMMON), (0.001, 0.003, 0.01, 0.02, 0.03, 0.06)),
    Grid(late.REGRESSION, 4, RANDOM, NESTEROV, ALL, (0.003, 0.01, 0.02, 0.03, 0.06)),
    Grid(late.REGRESSION, 4, RANDOM, ADAMW, (*ALL, *BOTH_COMMON), (0.001, 0.003, 0.01, 0.02, 0.03, 0.1)),
    Grid(late.BYTES, 4, RANDOM, ADAMW, (*ALL, *UNBARRED), (0.001, 0.003, 0.01)),
    Grid(late.REGRESSION, 8, RANDOM, HEAVY_BALL, (*ALL, *UNBARRED), (0.003, 0.01, 0.02, 0.03)),
    Grid(late.REGRESSION, 8, RANDOM, ADAMW, (*ALL, *UNBARRED), (0.003, 0.01, 0.02, 0.03)),
    Grid(late.DIGITS, 4, RANDOM, HEAVY_BALL, (late.ALL_REDUCE, late.MAJORITY, late.SOLO, *UNBARRED), (0.03, 0.1, 0.3)),
    Grid(late.DIGITS, 4, RANDOM, ADAMW, (late.ALL_REDUCE, late.MAJORITY, late.SOLO), (0.003, 0.01, 0.03)),
    *(
        Grid(late.REGRESSION, 4, pauses, optimizer, (late.ALL_REDUCE, late.MAJORITY, late.SOLO), (0.003, 0.01, 0.02))
        for pauses in (SLOW, BURSTS)
        for optimizer in (HEAVY_BALL, ADAMW)
    ),
    *(
        Grid(late.REGRESSION, 8, RANDOM, optimizer, (late.ALL_REDUCE, late.MAJORITY, late.SOLO), rates, SEEDS[:1])
        for optimizer, rates in ((PLAIN, (0.01, 0.03, 0.06)), (NESTEROV, (0.003, 0.01, 0.02, 0.03)))
    ),
)


class Trainings:
    """What has been trained, and what came of it."""

    def __init__(self, kept: Path | None) -> None:
        self._kept, self._found = kept, dict[Training, Losses]()
        if kept is not None and kept.exists():
            for told, losses in map(json.loads, kept.read_text(encoding="utf-8").splitlines()):
                self._found[Training(**{**told, "rates": tuple(told["rates"])})] = Losses(**losses)

    def train(self, trainings: Iterable[Training], jobs: int) -> None:
        """Those that are not there yet."""
        wanted = [one for one in dict.fromkeys(trainings) if one not in self._found]
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for number, losses in enumerate(pool.imap(late.in_the_virtual_world, wanted)):
                one = wanted[number]
                self._found[one] = losses
                where = f"{one.task}, {one.workers} workers, {one.pauses}, {one.optimizer}, {one.side}, seed {one.seed}"
                sys.stderr.write(f"{number + 1}/{len(wanted)}  {where}: {' '.join(f'{x:.4g}' for x in losses.final)}\n")
                if self._kept is not None:
                    with self._kept.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([asdict(one), asdict(losses)]) + "\n")

    def by_rate(self, grid: Grid, side: str, seeds: Sequence[int], *, first: bool = False) -> ByRate | None:
        """Losses over seeds, in the end or when the first worker has ended; None where it was not trained."""
        wanted = [one for one in grid.trainings(seeds) if one.side == side]
        there = [self._found[one] for one in wanted if one in self._found]
        if not there or len(there) < len(wanted):
            return None
        columns = zip(*(one.first if first else one.final for one in there), strict=True)
        return {rate: list(column) for rate, column in zip(grid.rates, columns, strict=True)}


ByRate = dict[float, list[float]]


@dataclass(frozen=True)
class Held:
    """One side against all-reduce, by medians."""

    best: float
    """Its least loss over that of all-reduce, each at its own rate."""
    equal: float | None
    """The greatest ratio at equal rates up to a third of the one that is best for all-reduce; None where none is."""
    worse_from: float | None
    """The least rate at which the ratio is above `GOOD`; None where there is none."""


def held(ours: ByRate, base: ByRate) -> Held:
    """`ours` against all-reduce."""
    mine, theirs = ({rate: statistics.median(losses) for rate, losses in one.items()} for one in (ours, base))
    best_rate = min(theirs, key=lambda rate: theirs[rate])
    ratios = {rate: loss / theirs[rate] for rate, loss in mine.items() if theirs[rate] < late.DIVERGED}
    return Held(
        best=min(mine.values()) / theirs[best_rate],
        equal=max((ratio for rate, ratio in ratios.items() if rate <= best_rate / 3), default=None),
        worse_from=min((rate for rate, ratio in ratios.items() if ratio > GOOD), default=None),
    )


def tell(report: record.Report, trainings: Trainings, grid: Grid, seeds: Sequence[int]) -> None:
    """The rows and bars of one optimizer in one place."""
    base = trainings.by_rate(grid, late.ALL_REDUCE, seeds)
    for side in grid.sides:
        ours = trainings.by_rate(grid, side, seeds)
        first = trainings.by_rate(grid, side, seeds, first=True)
        found = None
        if base is not None and ours is not None and first is not None:
            for rate, losses in ours.items():
                report.rows.append(record.figure(f"{grid.name}: loss at {rate:g}, {side}", losses))
            found, then = held(ours, base), held(first, base)
            for what, one in (("in the end", found), ("when the first worker has ended", then)):
                for name, value in (
                    ("best loss / all-reduce's", one.best),
                    ("loss / all-reduce's at equal rates up to a third of its best", one.equal),
                    (f"least rate at which loss / all-reduce's is above {GOOD:g}", one.worse_from),
                ):
                    if value is not None and side != late.ALL_REDUCE:
                        report.rows.append(record.figure(f"{grid.name}: {name}, {what}, {side}", [value]))
        if side in BARRED:
            limit = BEST.get(side, BEST_OF_SOLO[grid.workers])
            best, equal = (None, None) if found is None else (found.best, found.equal)
            report.bar(f"{grid.name}: best loss / all-reduce's, {side}", best, at_most=limit)
            name = f"{grid.name}: loss / all-reduce's at equal rates up to a third of its best, {side}"
            report.bar(name, equal, at_most=GOOD)


def really(report: record.Report, trainings: Trainings, seeds: Sequence[int]) -> None:
    """Real workers beside virtual ones, at one rate."""
    real: dict[tuple[str, str, bool], list[float]] = {}
    for seed in seeds:
        sys.stderr.write(f"real workers, seed {seed}\n")
        for line in json_lines(late.__file__, 4, str(seed)):
            optimizer, side, *losses = json.loads(line)
            for is_first, loss in zip((False, True), losses, strict=True):
                real.setdefault((optimizer, side, is_first), []).append(loss)
    for (optimizer, side, is_first), found in real.items():
        when = "when the first worker has ended" if is_first else "in the end"
        where = f"real, {late.REGRESSION}, 4 workers, {RANDOM}, {optimizer} at {late.REAL_RATE:g}, {when}"
        report.rows.append(record.figure(f"{where}: loss, {side}", found))
        grid = next(one for one in GRIDS if one.name == f"{late.REGRESSION}, 4 workers, {RANDOM}, {optimizer}")
        virtual = trainings.by_rate(grid, side, seeds, first=is_first)
        if virtual is not None:
            pairs = zip(found, virtual[late.REAL_RATE], strict=True)
            report.rows.append(record.figure(f"{where}: real / virtual loss, {side}", [a / b for a, b in pairs]))


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train in virtual workers (1)")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="what has been trained, to go on from")
    parser.add_argument("--only", choices=("virtual", "real"), help="one of the two parts")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it, as SVG")
    options: argparse.Namespace = parser.parse_args()
    seeds = SEEDS[:1] if options.quick else SEEDS
    report = record.Report("late_gradients", {"seeds": seeds, "compute": late.COMPUTE, "steps": late.Regression.steps})
    trainings = Trainings(options.kept)
    if options.only != "real":
        grids = [one for one in GRIDS if not options.quick or (one.workers == 4 and one.name.startswith("regression"))]
        grids = [one for one in grids if not options.quick or one.pauses == RANDOM]
        trainings.train((one for grid in grids for one in grid.trainings(seeds)), options.jobs)
    for grid in GRIDS:
        tell(report, trainings, grid, seeds)
    if options.only != "virtual":
        really(report, trainings, seeds)
    if options.picture is not None:
        options.picture.write_text(late_gradients_picture.of_rows(report.rows) + "\n", encoding="utf-8")
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
