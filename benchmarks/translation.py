"""How much faster is training without waiting on sentences of unequal length, the published workload of translation?

Eight workers train a Transformer on translations that are installed on the machine, 16 pairs in a batch, neither
bucketed nor cut. The script first measures the small Transformer on one core: seconds of a batch against its tokens,
padding included. A step of a worker then takes the seconds of its batch on a core of its own: what the tiny Transformer
that is trained does not use of them is slept. They are scaled to a mean of `MEAN_SECONDS`.

The grid of learning rates, and the choice of the best of ours, come from the virtual world with a seed of its own
(`--part choice`). The seeds that count are real processes: torch DDP, the chosen strategy, eager-majority, and DDP on
batches sorted by length (`bucketed`), which takes knowing the lengths beforehand. eager-SGD's authors report 1.27 for
eager-majority over Horovod, on videos.

Time to equal loss is the time at which the mean curve of a side's runs comes to the highest loss with which a run of
torch DDP has ended, between evaluations on a straight line. The ideal is the speed-up if nobody ever waited: the
longest of the workers' own times of a step over their mean, in the runs of DDP.

Runs are kept in the file of `--runs`, with the measured pace, and not made again. `--part cores` has two workers that
really compute the small Transformer, each on a core: the ideal ratio and the measured one, for equal work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import record
import torch
from severe_imbalance import BUCKETED, BUCKETED_SCRIPT, ideal, own_times, turned
from trainings import ALL_REDUCE, DDP, MAJORITY, SCRIPT, SOLO, Runs, Setting, Side

from quorate.launch.warm.request import VirtualRun
from quorate.report.topics.quality import curve_of
from quorate.workloads.translation import Translation

WORKERS, BATCH = 8, 16
WARM_UP = 2
"""Batches that are computed before seconds count."""
MEAN_SECONDS = 0.4
"""Of a step, in the mean; the small Transformer takes more."""
LONGEST = 300
"""Bytes of a sentence: with the catalogues of Debian 12, batches then differ by 0.44 of their mean."""
WORKLOAD = {"size": "tiny", "limit": 6000, "warm_up": 30, "test_pairs": 256}
EPOCHS, EVALUATIONS = 3.0, 8
MORE = 2
"""Evaluations by which ours go on beyond equal work: where they need more of it, that is time as well."""
METRIC = "cross_entropy"
SHARE, PUBLISHED_MAJORITY, PUBLISHED_SPREAD = 0.75, 1.27, 0.30

QUORUMS = tuple(Side(name=f"quorum of {k}", strategy="quorum", settings={"wait_for": k}) for k in (3, 4, 6))
OURS = (SOLO, MAJORITY, *QUORUMS)
ON_CORES = (DDP, SOLO)
EPOCHS_ON_CORES = 0.3
"""Some 56 steps of each of two workers."""
GRID = (0.5, 1.0, 2.0)
"""Factors of the workload's learning rate."""
CHOICE_SEED = 100
"""The seed of the choice, which is none of the seeds that count."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of a batch on one core, fitted to measured ones, and scaled."""

    text: str
    """The minimum step time, in the form of `--min-step-time`."""
    correlation: float
    """Between measured seconds and tokens."""
    mean_seconds: float
    spread: float
    """Standard deviation over mean of the measured seconds."""


def measured_pace(longest: int, batches: int) -> Pace:
    """Time steps of the small Transformer, in seconds of the processor, with one thread."""
    workload = Translation(size="small", longest=longest, limit=6000)
    data = workload.dataset(train=True)
    model = workload.model()
    optimizer = workload.optimizer(model)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    seconds, tokens = [], []
    for number in range(WARM_UP + batches):
        batch = workload.collate([data[place] for place in order[number * BATCH : (number + 1) * BATCH]])
        begin = time.process_time()
        workload.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= WARM_UP:
            seconds.append(time.process_time() - begin)
            tokens.append(float(batch.tokens))
    torch.set_num_threads(threads)
    slope, fixed = np.polyfit(tokens, seconds, 1)
    scale = MEAN_SECONDS / statistics.fmean(seconds)
    return Pace(
        text=f"{max(0.0, fixed) * scale * 1e3:.4g}ms+{slope * scale * 1e6:.4g}us/token",
        correlation=float(np.corrcoef(tokens, seconds)[0, 1]),
        mean_seconds=statistics.fmean(seconds),
        spread=statistics.stdev(seconds) / statistics.fmean(seconds),
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """The figures of a run that are kept."""

    side: str
    factor: float
    seed: int
    is_virtual: bool
    seconds: Sequence[float]
    """At evaluations, of training."""
    loss: Sequence[float]
    ideal: float
    spread: float
    """Standard deviation over mean of the workers' own times of a step."""


class Kept:
    """The pace and the runs, in a file where one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.pace = next((Pace(**row["pace"]) for row in rows if "pace" in row), None)
        self.runs = [Run(**row["run"]) for row in rows if "run" in row]

    def add(self, kind: str, row: Pace | Run) -> None:
        if isinstance(row, Pace):
            self.pace = row
        else:
            self.runs.append(row)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({kind: asdict(row)}) + "\n")

    def find(self, side: Side, *, is_virtual: bool, factor: float | None = None) -> list[Run]:
        runs = [run for run in self.runs if (run.side, run.is_virtual) == (side.name, is_virtual)]
        return [run for run in runs if factor is None or run.factor == factor]

    def rate_of(self, side: Side) -> float:
        """The factor with the least last loss in the virtual world; 1 where none was tried."""
        tried = ALL_REDUCE if side in (DDP, BUCKETED) else side
        runs = self.find(tried, is_virtual=True)
        return min(runs, key=lambda run: worked(run)[1]).factor if runs else 1.0

    def chosen(self) -> Side:
        """The strategy of ours that is the first at the loss with which all-reduce ends, in the virtual world."""
        target = min(worked(run)[1] for run in self.find(ALL_REDUCE, is_virtual=True))
        times: list[tuple[float, Side]] = []
        for side in OURS:
            runs = self.find(side, is_virtual=True, factor=self.rate_of(side))
            if runs and (seconds := seconds_to(target, runs)) is not None:
                times.append((seconds, side))
        return min(times, key=lambda timed: timed[0])[1] if times else QUORUMS[1]


def make(
    runs: Runs, side: Side, seed: int, options: argparse.Namespace, pace: Pace, *, factor: float, is_virtual: bool
) -> Run:
    setting = Setting(workers=WORKERS, steps=0, batch=BATCH, pace=pace.text, learning_rate_factor=factor)
    evaluations = EVALUATIONS + MORE * (side in OURS)
    epochs, evaluations = (0.15, 1) if options.quick else (EPOCHS * evaluations / EVALUATIONS, evaluations)
    workload: dict[str, Any] = {**WORKLOAD, "longest": options.longest}
    arguments = ["translation", "--settings", json.dumps(workload), "--batch", str(BATCH)]
    arguments += ["--epochs", str(epochs), "--evaluations", str(evaluations)]
    virtual = VirtualRun(seed=seed, compute="constant:0", latency=None) if is_virtual else None
    script = BUCKETED_SCRIPT if side is BUCKETED else SCRIPT
    records = runs.script(str(script), arguments, side, setting, seed, virtual=virtual)
    curve = curve_of(records, METRIC, seed)
    if curve is None:
        raise SystemExit("a run has no evaluation")
    own = own_times(records)
    every = [seconds for row in own for seconds in row]
    return Run(
        side=side.name,
        factor=factor,
        seed=seed,
        is_virtual=is_virtual,
        seconds=curve.seconds,
        loss=curve.quality,
        ideal=ideal(own),
        spread=statistics.stdev(every) / statistics.fmean(every),
    )


def on_two_cores(runs: Runs, options: argparse.Namespace) -> list[record.Figure]:
    """Return the ideal and the measured ratio of two workers that compute the small Transformer, for equal work."""
    workload: dict[str, Any] = {**WORKLOAD, "size": "small", "longest": options.longest, "test_pairs": 16}
    arguments = ["translation", "--settings", json.dumps(workload), "--batch", str(BATCH)]
    arguments += ["--epochs", str(0.05 if options.quick else EPOCHS_ON_CORES), "--evaluations", "1"]
    setting = Setting(workers=2, steps=0, batch=BATCH)
    ideals, ratios = list[float](), list[float]()
    for seed in range(1 if options.quick else 3):
        seconds: dict[str, float] = {}
        for side in turned(list(ON_CORES), seed):
            records = runs.script(str(SCRIPT), arguments, side, setting, seed)
            curve = curve_of(records, METRIC, seed)
            assert curve is not None
            seconds[side.name] = curve.seconds[-1]
            if side is DDP:
                ideals.append(ideal(own_times(records)))
        ratios.append(seconds[DDP.name] / seconds[SOLO.name])
    words = "two workers on two cores, small model"
    return [
        record.figure(f"{words}: ideal ratio, where nobody waits", ideals),
        record.figure(f"{words}: seconds for equal work, ddp / eager-solo", ratios),
    ]


def distinct(sides: Sequence[Side]) -> list[Side]:
    """The sides, each once."""
    return list({side.name: side for side in sides}.values())


def worked(run: Run) -> tuple[float, float]:
    """Seconds and loss after the work that all sides do."""
    return run.seconds[:EVALUATIONS][-1], run.loss[:EVALUATIONS][-1]


def seconds_to(target: float, runs: Sequence[Run]) -> float | None:
    """The time at which the mean curve comes to a loss of `target`; None where it does not."""
    before: tuple[float, float] | None = None
    for seconds, loss in zip(
        map(statistics.fmean, zip(*(run.seconds for run in runs), strict=False)),
        map(statistics.fmean, zip(*(run.loss for run in runs), strict=False)),
        strict=True,
    ):
        if loss <= target:
            if before is None or before[1] == loss:
                return seconds
            return before[0] + (seconds - before[0]) * (before[1] - target) / (before[1] - loss)
        before = seconds, loss
    return None


def tell(kept: Kept, chosen: Side, report: record.Report) -> None:
    """Figures and bars of the real runs."""
    ddp = kept.find(DDP, is_virtual=False)
    if not ddp:
        return
    ideals = [run.ideal for run in ddp]
    target = max(worked(run)[1] for run in ddp)
    reached = seconds_to(target, ddp)
    report.settings["target"] = target
    report.rows.append(record.figure("ideal ratio, where nobody waits", ideals))
    name = f"spread of a worker's own steps (published for WMT16: {PUBLISHED_SPREAD})"
    report.rows.append(record.figure(name, [run.spread for run in ddp]))
    ratios: dict[str, float] = {}
    for side in distinct([DDP, chosen, MAJORITY, BUCKETED]):
        runs = kept.find(side, is_virtual=False)
        if not runs:
            continue
        report.rows.append(record.figure(f"seconds for equal work, {side.name}", [worked(run)[0] for run in runs]))
        report.rows.append(record.figure(f"loss after equal work, {side.name}", [worked(run)[1] for run in runs]))
        seconds = seconds_to(target, runs)
        if side is not DDP and seconds is not None and reached is not None:
            ratios[side.name] = reached / seconds
            published = f" (published on videos: {PUBLISHED_MAJORITY})" if side is MAJORITY else ""
            report.rows.append(
                record.figure(f"seconds to equal loss, ddp / {side.name}{published}", [ratios[side.name]])
            )
    measured = None
    if kept.find(chosen, is_virtual=False) and not report.settings["is_quick"]:
        measured = ratios.get(chosen.name, 0.0) / statistics.median(ideals)
    bound = Translation(**{**WORKLOAD, "longest": report.settings["workload"]["longest"]}).unigram_bound()
    report.rows.append(record.figure("cross-entropy of single bytes", [bound]))
    lost = None if report.settings["is_quick"] else target
    report.bar("loss after equal work, ddp, at most that of single bytes", lost, at_most=round(bound, 3))
    report.bar(f"seconds to equal loss, ddp / {chosen.name}, of the ideal", measured, at_least=SHARE)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument(
        "--part",
        choices=("choice", "1", "2", "3", "cores", "all"),
        default="all",
        help="the choice, a seed, or two workers on two cores (all)",
    )
    parser.add_argument("--runs", type=Path, metavar="FILE", help="keep runs in FILE, and make only those not there")
    parser.add_argument("--longest", type=int, default=LONGEST, help=f"bytes of a sentence ({LONGEST})")
    options = parser.parse_args()
    kept = Kept(None if options.quick else options.runs)
    if kept.pace is None:
        kept.add("pace", measured_pace(options.longest, 4 if options.quick else 24))
    pace = kept.pace
    assert pace is not None
    print(f"measured: {pace.mean_seconds:.3f} s a batch, sd/mean {pace.spread:.3f}; pace {pace.text}", flush=True)
    tried = [] if options.quick or options.part not in ("choice", "all") else [ALL_REDUCE, *OURS]
    seeds = {"choice": [], "cores": [], "all": [0, 1, 2]}.get(
        options.part, [int(options.part) - 1] if options.part.isdigit() else []
    )
    seeds = seeds[:1] if options.quick else seeds
    real = (DDP, None) if options.quick else (DDP, None, MAJORITY, BUCKETED)  # None: the chosen strategy
    made = {(run.side, run.factor, run.seed, run.is_virtual) for run in kept.runs}
    figures: list[record.Figure] = []
    has_cores, each = options.part in ("cores", "all"), len(ON_CORES) * (1 if options.quick else 3)
    with Runs(len(tried) * len(GRID) + len(real) * len(seeds) + each * has_cores) as runs:
        if has_cores:
            figures = on_two_cores(runs, options)
        for side, factor in [(side, factor) for factor in GRID for side in tried]:
            if (side.name, factor, CHOICE_SEED, True) not in made:
                run = make(runs, side, CHOICE_SEED, options, pace, factor=factor, is_virtual=True)
                kept.add("run", run)
        chosen = kept.chosen() if kept.find(ALL_REDUCE, is_virtual=True) else QUORUMS[1]
        print(f"chosen: {chosen.name}", flush=True)
        sides = distinct([side or chosen for side in real])
        for seed in seeds:
            for side in turned(sides, seed):
                factor = kept.rate_of(side)
                if (side.name, factor, seed, False) not in made:
                    kept.add("run", make(runs, side, seed, options, pace, factor=factor, is_virtual=False))
    rates = {side.name: kept.rate_of(side) for side in distinct([DDP, chosen, MAJORITY, BUCKETED])}
    report = record.Report(
        "translation",
        {
            "workers": WORKERS,
            "is_quick": options.quick,
            "workload": {**WORKLOAD, "longest": options.longest},
            "measured pace": asdict(pace),
            "epochs": EPOCHS,
            "chosen": chosen.name,
            "learning rate factors": rates,
        },
    )
    report.rows.append(record.figure("spread of measured batches, small model on one core", [pace.spread]))
    report.rows += figures
    tell(kept, chosen, report)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
