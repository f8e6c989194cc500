"""What do servers gain that do not wait, and what does staleness cost?

Speed, in real processes: eight workers with steps of 280 ms, of which one, drawn anew in every step, is late by 300 ms
(the imbalance of `light_imbalance`), train `hyperplane` and `digits` under torch DDP, `all-reduce` and
`parameter-server` in each of its modes. Told are gradients per second of all workers, the time to the same training
loss, and the quality in the end. Then the last worker always takes twice as long, as a backup is for. The no-wait ideal
of a run is what its own workers would do if they never waited for a message, each at the time that it computed for;
under `sync` with a backup it is that of the P - b workers that are on time.

Quality, in virtual workers, so that it does not depend on how busy the machine is: the held-out loss at equal examples,
by learning rate, with and without momentum, over that of `all-reduce`, where eight workers pause at random. With
momentum 0.9 there is a rate from which on `async` comes to more than 1.05 times the loss of all-reduce; there the
momentum of workers (DANA) is held against 1.05, unless all-reduce itself is beyond 1.5 times its best.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import late_trainings as late
import readings
import record
from late_gradients import RANDOM, Grid, Trainings
from trainings import ALL_REDUCE, DDP, Runs, Setting, Side, in_milliseconds

from quorate.report.reading.run import RunRecords
from quorate.report.topics.quality import final_quality
from quorate.strategies import strategies

WORKERS, PACE, LATE = 8, 0.28, 0.3
SLOW = WORKERS - 1
"""The one that always takes twice as long, where one does."""
GOOD = 1.05
BACKUP_BAR, ASYNC_BAR = 0.95, 0.97
"""Of the ideal."""
SERVED = (late.SYNC, late.BACKUP, late.BOUNDED, late.ASYNC, late.SCALED, late.COMPENSATED, late.DANA, late.EASGD)
OPTIMIZERS = (late.PLAIN, late.HEAVY_BALL)
RATES = {
    (late.HYPERPLANE, late.PLAIN): (0.01, 0.03, 0.06, 0.1),
    (late.HYPERPLANE, late.HEAVY_BALL): (0.003, 0.006, 0.01, 0.02, 0.03),
    (late.DIGITS, late.PLAIN): (0.03, 0.1, 0.3),
    (late.DIGITS, late.HEAVY_BALL): (0.01, 0.03, 0.1),
}
TASKS = {
    "hyperplane": Setting(
        workers=WORKERS, steps=120, batch=32, workload={"points": 4096, "features": 1024}, learning_rate_factor=3.0
    ),
    "digits": Setting(workers=WORKERS, steps=90, batch=16, name="digits"),
}
LOSSES = {"hyperplane": 4.7, "digits": 0.3}
"""Of training, to which the time is told."""
QUALITIES = {"hyperplane": "squared_error", "digits": "top1"}


def there(names: Iterable[str]) -> list[str]:
    """Those whose strategy is registered."""
    return [name for name in names if late.SIDES[name][0] in strategies]


def side_of(name: str) -> Side:
    strategy, settings = late.SIDES[name]
    return Side(name=name, strategy=strategy, settings=settings)


def no_wait_share(run: RunRecords, ranks: Iterable[int]) -> float:
    """Steps a second of these workers after the warm-up, over what they would be had they never waited."""
    rate = ideal = 0.0
    for rank in ranks:
        steps = run.ranks[rank].steps[run.usual_warm_up :]
        rate += len(steps) / (steps[-1].end - steps[0].begin)
        ideal += len(steps) / sum(step.end - step.begin - step.wait for step in steps)
    return rate / ideal


class Speed:
    """Real runs of one task, and what they came to, by side."""

    def __init__(self, task: str, steps: int | None) -> None:
        self.task, setting = task, replace(TASKS[task], pace=in_milliseconds(PACE))
        self.setting = setting if steps is None else replace(setting, steps=steps)
        self.found: dict[tuple[str, str], list[float]] = {}

    def run(self, runs: Runs, sides: Sequence[Side], seed: int) -> None:
        """Each side once, in another order with each seed."""
        first = seed % len(sides)
        light = replace(self.setting, imbalance=f"one-of:{in_milliseconds(LATE)}")
        for side in (*sides[first:], *sides[:first]):
            run = runs.train(side, light, seed)
            self._note(side, "gradients per second", readings.gradients_per_second(run, light.batch))
            self._note(side, "share of the no-wait ideal", no_wait_share(run, range(WORKERS)))
            self._note(side, f"seconds to a loss of {LOSSES[self.task]:g}", readings.seconds_to(LOSSES[self.task], run))
            self._note(side, f"final {QUALITIES[self.task]}", final_quality(run, QUALITIES[self.task]))

    def slowed(self, runs: Runs, seed: int) -> None:
        """One worker always takes twice as long, and one gradient of a step is not waited for."""
        run = runs.train(side_of(late.BACKUP), replace(self.setting, imbalance=f"rank:{SLOW}:x2"), seed)
        on_time = no_wait_share(run, (rank for rank in range(WORKERS) if rank != SLOW))
        self._note(side_of(late.BACKUP), "one slow: share of the ideal of those on time", on_time)

    def _note(self, side: Side, what: str, value: float | None) -> None:
        """Nothing where it was not reached."""
        if value is not None:
            self.found.setdefault((what, side.name), []).append(value)

    def tell(self, report: record.Report) -> None:
        """The rows; a ratio is of equal seeds."""
        for (what, side), values in self.found.items():
            report.rows.append(record.figure(f"{self.task}: {what}, {side}", values))
            base = self.found.get((what, DDP.name), [])
            if what == "gradients per second" and side != DDP.name and len(base) == len(values):
                ratios = [mine / theirs for mine, theirs in zip(values, base, strict=True)]
                report.rows.append(record.figure(f"{self.task}: {what}, {side} / ddp", ratios))
        for what, side, bar in (
            ("one slow: share of the ideal of those on time", late.BACKUP, BACKUP_BAR),
            ("share of the no-wait ideal", late.ASYNC, ASYNC_BAR),
        ):
            report.bar(f"{self.task}: {what}, {side}", record.median_of(self.found.get((what, side))), at_least=bar)


def grids(*, is_quick: bool) -> list[Grid]:
    """What is trained in virtual workers."""
    if is_quick:
        sides, rates = (late.ALL_REDUCE, late.ASYNC, late.DANA), (0.003, 0.01)
        return [Grid(late.HYPERPLANE, WORKERS, RANDOM, late.HEAVY_BALL, sides, rates, (0,))]
    sides = (late.ALL_REDUCE, *there(SERVED))
    return [
        Grid(task, WORKERS, RANDOM, optimizer, sides, RATES[task, optimizer])
        for task in (late.HYPERPLANE, late.DIGITS)
        for optimizer in OPTIMIZERS
    ]


def quality(report: record.Report, trainings: Trainings, grid: Grid, seeds: Sequence[int]) -> None:
    """Rows of one task and optimizer: losses over those of all-reduce, at its best rate and each at its own."""
    base = trainings.by_rate(grid, late.ALL_REDUCE, seeds)
    assert base is not None
    best = min(base, key=lambda rate: statistics.median(base[rate]))
    bearable = [rate for rate in grid.rates if statistics.median(base[rate]) <= 1.5 * statistics.median(base[best])]
    ratios: dict[tuple[str, float], float] = {}
    for side in grid.sides:
        ours = trainings.by_rate(grid, side, seeds)
        assert ours is not None
        for rate, losses in ours.items():
            report.rows.append(record.figure(f"{grid.name}: loss at {rate:g}, {side}", losses))
        if side != late.ALL_REDUCE:
            for rate in bearable:
                at_equal = [mine / theirs for mine, theirs in zip(ours[rate], base[rate], strict=True)]
                ratios[side, rate] = statistics.median(at_equal)
                report.rows.append(record.figure(f"{grid.name}: loss / all-reduce's at {rate:g}, {side}", at_equal))
            least = min(statistics.median(losses) for losses in ours.values())
            name = f"{grid.name}: loss / all-reduce's, each at its best rate, {side}"
            report.rows.append(record.figure(name, [least / statistics.median(base[best])]))
    if grid.optimizer == late.HEAVY_BALL:
        least_bad = min((rate for rate in bearable if ratios[late.ASYNC, rate] > GOOD), default=None)
        where = f"at the least rate at which {late.ASYNC} is above {GOOD:g}"
        measured = None if least_bad is None else ratios[late.DANA, least_bad]
        report.bar(f"{grid.name}: loss / all-reduce's, {where}, {late.DANA}", measured, at_most=GOOD)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=3, help="of every real run, each with a seed of its own (3)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train in virtual workers (1)")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="what has been trained in them, to go on from")
    parser.add_argument("--only", choices=("speed", "quality"), help="one of the two parts")
    options: argparse.Namespace = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    sides = [DDP, side_of(late.ASYNC)] if options.quick else [DDP, ALL_REDUCE, *map(side_of, there(SERVED))]
    tasks = ("hyperplane",) if options.quick else tuple(TASKS)
    settings = {"workers": WORKERS, "pace": PACE, "late": LATE, "repeats": repeats}
    report = record.Report("servers", {**settings, "sides": [side.name for side in sides]})
    if options.only != "quality":
        with Runs(repeats * len(tasks) * (len(sides) + 1)) as runs:
            for task in tasks:
                speed = Speed(task, 12 if options.quick else None)
                for seed in range(repeats):
                    speed.run(runs, sides, seed)
                    speed.slowed(runs, seed)
                speed.tell(report)
    if options.only != "speed":
        trainings, seeds = Trainings(options.kept), (0,) if options.quick else (0, 1, 2)
        wanted = grids(is_quick=options.quick)
        trainings.train((one for grid in wanted for one in grid.trainings(seeds)), options.jobs)
        for grid in wanted:
            quality(report, trainings, grid, seeds)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
