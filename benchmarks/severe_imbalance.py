"""How much faster is training without waiting where the work of a batch varies as widely as that of videos?

Eight workers train an LSTM on functions of the standard library, uncut, 16 in a batch. A step takes a fixed time and
so much for each token of its batch, padding included, such that the times of steps have the relative spread of the
published batches of videos (UCF101: mean 1,235 ms, standard deviation 706 ms), at about a sixth of them. eager-SGD's
authors report 1.64 for solo over synchronous, with 9 points of accuracy lost, and 1.27 for majority with none.

All sides do equal work, and ours a quarter more, so that what lateness costs is seen in time, at their own best
learning rate of a grid, trained in the virtual world (`--part rates`). The time to equal accuracy is the time at which
the mean curve of a side's runs comes to the lowest accuracy with which a run of torch DDP has ended, between
evaluations on a straight line. `bucketed` is the obvious alternative: batches that are sorted by length, which takes
knowing the lengths beforehand.

Runs are kept in the file of `--runs`, and not made again: so the parts, one for each seed, can be made one by one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
from trainings import ALL_REDUCE, DDP, MAJORITY, SCRIPT, SOLO, Runs, Setting, Side

from quorate.launch.warm.request import VirtualRun
from quorate.report.reading.run import RunRecords
from quorate.report.topics.quality import curve_of

WORKERS, BATCH = 8, 16
MODULES = ("asyncio", "distutils", "email", "idlelib", "lib2to3", "multiprocessing", "tkinter", "unittest")
"""A third of the library's functions, in eight packages of at least 370: so many that one minute teaches something."""
WORKLOAD = {"modules": MODULES, "vocabulary_size": 2048, "embedding": 16, "hidden": 32}
PACE = "46ms+21.8us/token"
"""200 ms in the mean, with the published spread: of 16 functions the longest has 441 words in the mean."""
EPOCHS, EVALUATIONS = 2.25, 8
MORE = 2
"""Evaluations by which ours go on beyond equal work: where they need more of it, that is time as well."""
PUBLISHED, PUBLISHED_MAJORITY = 1.64, 1.27

BUCKETED = Side(name="ddp, bucketed", strategy="ddp")
ADAPTIVE = Side(name="adaptive", strategy="adaptive")
QUORUMS = tuple(Side(name=f"quorum of {k}", strategy="quorum", settings={"wait_for": k}) for k in range(2, WORKERS))
OURS = (SOLO, MAJORITY, *QUORUMS, ADAPTIVE)
SIDES = (DDP, ALL_REDUCE, *OURS, BUCKETED)
SYNCHRONOUS = (DDP, ALL_REDUCE, BUCKETED)
GRID = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors of the workload's learning rate."""
LAST = 3
"""Evaluations over which the accuracy that decides for a rate is averaged."""
IN_GRID = (ALL_REDUCE, SOLO, QUORUMS[2])
BUCKETED_SCRIPT = Path(__file__).resolve().with_name("bucketed.py")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is kept of one."""

    side: str
    factor: float
    seed: int
    is_virtual: bool
    seconds: Sequence[float]
    """At evaluations, of training."""
    top1: Sequence[float]
    ideal: float | None
    """Synchronous runs: the longest of the workers' own times over their mean, step by step."""
    spread: float
    """Standard deviation over mean of the workers' own times of a step."""
    quorums: Sequence[int]
    """What `adaptive` has chosen."""


def make(runs: Runs, side: Side, factor: float, seed: int, *, is_virtual: bool, is_quick: bool) -> Run:
    setting = Setting(workers=WORKERS, steps=0, batch=BATCH, pace=PACE, learning_rate_factor=factor)
    evaluations = evaluations_of(side, is_virtual=is_virtual)
    epochs, evaluations = (0.3, 2) if is_quick else (EPOCHS * evaluations / EVALUATIONS, evaluations)
    arguments = ["stdlib-functions", "--settings", json.dumps(WORKLOAD), "--batch", str(BATCH)]
    arguments += ["--epochs", str(epochs), "--evaluations", str(evaluations)]
    script = BUCKETED_SCRIPT if side is BUCKETED else SCRIPT
    virtual = VirtualRun(seed=seed, compute="constant:0", latency=None) if is_virtual else None
    found = runs.script(str(script), arguments, side, setting, seed, virtual=virtual)
    curve = curve_of(found, "top1", seed)
    if curve is None:
        raise SystemExit("a run has no evaluation")
    own = own_times(found)
    return Run(
        side=side.name,
        factor=factor,
        seed=seed,
        is_virtual=is_virtual,
        seconds=curve.seconds,
        top1=curve.quality,
        ideal=ideal(own) if side in (DDP, ALL_REDUCE, BUCKETED) else None,
        spread=statistics.stdev(flat := [one for row in own for one in row]) / statistics.fmean(flat),
        quorums=[one.settings["wait_for"] for one in found.ranks[0].rounds if one.settings],
    )


def evaluations_of(side: Side, *, is_virtual: bool) -> int:
    return EVALUATIONS + MORE * (side in OURS and not is_virtual)


def own_times(run: RunRecords) -> list[list[float]]:
    """Seconds at work, by rank, of steps after the warm-up."""
    steps = run.after(run.usual_warm_up)
    return [[step.arrive - step.begin for step in own] for own in steps.values()]


def ideal(own: Sequence[Sequence[float]]) -> float:
    """How much faster it would be if nobody ever waited: the longest of each step over the mean."""
    together = list(zip(*own, strict=False))
    return sum(map(max, together)) / sum(map(statistics.fmean, together))


def worked(run: Run) -> float:
    """Seconds for the work that all sides do."""
    return run.seconds[:EVALUATIONS][-1]


def mean_curve(found: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Seconds and accuracy, evaluation by evaluation."""
    seconds = [statistics.fmean(at) for at in zip(*(one.seconds for one in found), strict=False)]
    return seconds, [statistics.fmean(at) for at in zip(*(one.top1 for one in found), strict=False)]


def seconds_to(target: float, found: Sequence[Run]) -> float | None:
    """On the mean curve; None where it does not come so far."""
    time, level = 0.0, 0.0
    for seconds, top1 in zip(*mean_curve(found), strict=True):
        if top1 >= target:
            return time + (seconds - time) * (target - level) / (top1 - level)
        time, level = seconds, top1
    return None


class Kept:
    """The runs that there are, in a file where one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.all = [Run(**json.loads(line)) for line in lines]

    def find(self, side: Side, *, is_virtual: bool, factor: float | None = None) -> list[Run]:
        wanted = (side.name, is_virtual, self.rate_of(side) if factor is None else factor)
        found = [one for one in self.all if (one.side, one.is_virtual, one.factor) == wanted]
        longest = max((len(one.top1) for one in found), default=0)
        return [one for one in found if len(one.top1) == longest]

    def rate_of(self, side: Side) -> float:
        """The best of the grid: of all-reduce for what waits for all, solo's own, a quorum of 4's for all others."""
        tried = ALL_REDUCE if side in SYNCHRONOUS else side if side is SOLO else QUORUMS[2]

        def accuracy(factor: float) -> float:
            runs = self.find(tried, is_virtual=True, factor=factor)
            return statistics.fmean(statistics.fmean(one.top1[-LAST:]) for one in runs) if runs else 0.0

        known = {factor: accuracy(factor) for factor in GRID}
        return max(known, key=lambda factor: known[factor]) if any(known.values()) else 1.0

    def add(self, one: Run) -> None:
        self.all.append(one)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")


def rates(kept: Kept, report: record.Report) -> None:
    """The grid of learning rates, in the virtual world."""
    for side in IN_GRID:
        for factor in GRID:
            found = kept.find(side, is_virtual=True, factor=factor)
            if found:
                seconds, top1 = mean_curve(found)
                report.rows.append(record.figure(f"virtual, rate x{factor:g}: last top-1, {side.name}", top1[-1:]))
                name = f"virtual, rate x{factor:g}: seconds for the work, {side.name}"
                report.rows.append(record.figure(name, seconds[-1:]))


def tell(kept: Kept, report: record.Report) -> None:
    """Figures and bars of the real runs."""
    found = {side.name: kept.find(side, is_virtual=False) for side in SIDES}
    ends = {name: [one.top1[:EVALUATIONS][-1] for one in runs] for name, runs in found.items()}
    ddp = found[DDP.name]
    for name, runs in found.items():
        if runs:
            report.rows.append(record.figure(f"seconds for equal work, {name}", [worked(one) for one in runs]))
            report.rows.append(record.figure(f"top-1 after equal work, {name}", ends[name]))
            paired = [worked(their) / worked(one) for one in runs for their in ddp if one.seed == their.seed]
            if paired and name != DDP.name:
                report.rows.append(record.figure(f"seconds for equal work, ddp / {name}", paired))
    if not ddp:
        return
    ideals = [one.ideal for one in ddp if one.ideal is not None]
    report.rows.append(record.figure("ideal ratio, where nobody waits", ideals))
    report.rows.append(record.figure("spread of a worker's own steps (published: 0.572)", [one.spread for one in ddp]))
    target = min(ends[DDP.name])
    spread = max(ends[DDP.name]) - target
    report.settings |= {
        "target": target,
        "spread of ddp's last top-1": spread,
        "chosen by adaptive": [list(one.quorums) for one in found[ADAPTIVE.name]],
    }
    theirs = seconds_to(target, ddp)
    report.rows.append(record.figure("seconds to the target, ddp", [theirs or float("nan")]))
    best: tuple[float, Side] | None = None
    for side in SIDES[1:]:
        ours = seconds_to(target, found[side.name]) if found[side.name] else None
        if ours is None or theirs is None:
            continue
        report.rows.append(record.figure(f"seconds to the target, ddp / {side.name}", [theirs / ours]))
        is_as_good = max(mean_curve(found[side.name])[1]) >= statistics.fmean(ends[DDP.name]) - spread
        if side in OURS and is_as_good and (best is None or theirs / ours > best[0]):
            best = theirs / ours, side
    name = "seconds to equal top-1, ddp / the best of ours that loses no accuracy"
    is_measured = any(found[side.name] for side in OURS)
    measured = best[0] if best is not None else 0.0 if is_measured else None
    report.bar(name if best is None else f"{name}: {best[1].name}", measured, at_least=PUBLISHED)
    if best is not None:
        report.rows.append(record.figure(f"share of the ideal, {best[1].name}", [best[0] / statistics.median(ideals)]))
        lost = statistics.fmean(ends[DDP.name]) - statistics.fmean(ends[best[1].name])
        report.bar(f"top-1 lost after equal work, {best[1].name}", lost, at_most=spread)


def turned(sides: Sequence[Side], number: int) -> list[Side]:
    first = number * 5 % len(sides)
    return [*sides[first:], *sides[:first]]


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--part", choices=("rates", "1", "2", "3", "all"), default="all", help="a seed each (all)")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="keep runs in FILE, and make only those not there")
    parser.add_argument("--sides", nargs="+", metavar="NAME", help="only these")
    options: argparse.Namespace = parser.parse_args()
    is_quick = options.quick
    kept = Kept(None if is_quick else options.runs)
    sides = [side for side in SIDES if options.sides is None or side.name in options.sides]
    seeds = [] if options.part == "rates" else [0, 1, 2] if options.part == "all" else [int(options.part) - 1]
    in_grid = [] if is_quick or options.part not in ("rates", "all") else IN_GRID
    if is_quick:
        sides, seeds = [DDP, QUORUMS[2]], [0]
    there = {(one.side, one.factor, one.seed, one.is_virtual, len(one.top1)) for one in kept.all}
    with Runs(len(in_grid) * len(GRID) + len(sides) * len(seeds)) as runs:
        for side, factor in [(side, factor) for factor in GRID for side in in_grid]:
            if (side.name, factor, 0, True, EVALUATIONS) not in there:
                kept.add(make(runs, side, factor, 0, is_virtual=True, is_quick=False))
        for number, side in [(seed, side) for seed in seeds for side in turned(sides, seed)]:
            factor = kept.rate_of(side)
            if (side.name, factor, number, False, evaluations_of(side, is_virtual=False)) not in there:
                kept.add(make(runs, side, factor, number, is_virtual=False, is_quick=is_quick))
    rates_of = {side.name: kept.rate_of(side) for side in SIDES}
    report = record.Report(
        "severe_imbalance",
        {"workers": WORKERS, "pace": PACE, "epochs": EPOCHS, "part": options.part, "learning rate factors": rates_of},
    )
    rates(kept, report)
    tell(kept, report)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
