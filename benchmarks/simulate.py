"""How long does it take to simulate 10,000 workers, and how far is what is said of a run from what the run did?

The command itself, in a process of its own, its start included: 10,000 workers, one in ten late in every step, 100
steps of the fastest, times alone; one strategy at a time.

Then real runs: 4 and 8 processes, a pace of 80 ms, one worker drawn anew in every step and late by 60 ms. Each run's
records say how long its workers were at work and what a message took; with these the same run is simulated, and held
against what was recorded. What was fitted is the work of each step and one latency; who waits for whom, which rounds
there are and what is in them is the simulation's own. Last, a strategy is foretold from runs of others:
`eager-majority` from the work of the all-reduce run and the latency of the solo run of the same seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
from trainings import ALL_REDUCE, DDP, MAJORITY, SOLO, Runs, Setting, Side

from quorate.report.reading.run import RunRecords
from quorate.simulation.calibrated import calibrated
from quorate.simulation.checked import case_of, held_against, recorded_figures
from quorate.simulation.figures import figures_of
from quorate.simulation.played import Case

SMALL = {"points": 4096, "features": 1024}
SCALED = (
    "all-reduce",
    "local-sgd",
    "eager-solo",
    "eager-majority",
    "quorum",
    "backup-workers",
    "d-psgd",
    "sgp",
    "ad-psgd",
)
BAR = "rounds per second"


def seconds_of(strategy: str, workers: int) -> float:
    """That the command takes, by the wall clock."""
    words = ["simulate", "--strategy", strategy, "-n", str(workers), "--steps", "100", "--network", "50us:100Gbit"]
    late = ["--compute", "lognormal:100ms:0.2", "--imbalance", f"{workers // 10}-of:200ms", "--parameters", "1000"]
    with tempfile.TemporaryDirectory(prefix="quorate-benchmark-") as folder:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "quorate.cli.main", *words, *late, "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
        took = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"the simulation of {strategy} failed: {done.stderr}")
    (row,) = json.loads(done.stdout)["rows"]
    sys.stderr.write(
        f"{strategy}, {workers:,} workers: {took:.1f} s; {row['steps_per_second']:,.0f} steps per second\n"
    )
    return took


def foretold(work: RunRecords, hops: RunRecords, run: RunRecords) -> tuple[float, float]:
    """Rounds per second of `run`: recorded, and told from the work and the latency of others."""
    own, other, wanted = (calibrated(str(one.folder)) for one in (work, hops, run))
    base = case_of(wanted)
    case = Case(
        workers=base.workers,
        steps=base.steps,
        parameters=base.parameters,
        busy=own.busy,
        links=other.links,
        seed=base.seed,
        examples=base.examples,
    )
    told = figures_of(wanted.times.play(case), case.workers, case.steps).rounds_per_second
    recorded = recorded_figures(wanted).rounds_per_second
    assert told is not None and recorded is not None
    return recorded, told


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=3, help="of every run, each with a seed of its own (3)")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    scaled = ("quorum",) if options.quick else SCALED
    many = 2_000 if options.quick else 10_000
    sizes = (4,) if options.quick else (4, 8)
    sides: tuple[Side, ...] = (ALL_REDUCE, SOLO) if options.quick else (DDP, ALL_REDUCE, SOLO, MAJORITY)
    steps = 30 if options.quick else 80

    report = record.Report("simulate", {"repeats": repeats, "workers": many, "sizes": list(sizes), "steps": steps})
    times = {strategy: seconds_of(strategy, many) for strategy in scaled}
    report.rows += [record.figure(f"{many:,} workers x 100, {name}: seconds", [took]) for name, took in times.items()]
    report.bar("10,000 workers x 100, the slowest: seconds", None if options.quick else max(times.values()), at_most=60)
    with Runs(repeats * len(sizes) * len(sides)) as runs:
        for size in sizes:
            setting = Setting(workers=size, steps=steps, batch=32, workload=SMALL, pace="80ms", imbalance="one-of:60ms")
            found: dict[tuple[str, str], list[tuple[float, float]]] = {}
            across: list[tuple[float, float]] = []
            for seed in range(repeats):
                made = {side.name: runs.train(side, setting, seed) for side in sides}
                for name, run in made.items():
                    for one in held_against(calibrated(str(run.folder))):
                        found.setdefault((name, one.name), []).append((one.recorded, one.simulated))
                if MAJORITY.name in made:
                    across.append(foretold(made["all-reduce"], made["eager-solo"], made["eager-majority"]))
            for (name, what), pairs in found.items():
                place = f"{size} processes, {name}, {what}"
                report.rows.append(record.figure(f"{place}, recorded", [recorded for recorded, _ in pairs]))
                report.rows.append(record.figure(f"{place}, simulated", [told for _, told in pairs]))
                off = record.figure(f"{place}, simulated / recorded", [told / recorded for recorded, told in pairs])
                report.rows.append(off)
                if what == BAR:
                    worst = max(abs(told / recorded - 1) for recorded, told in pairs)
                    report.bar(f"{size} processes, {name}, rounds per second off by", worst, at_most=0.1)
            if across:
                place = f"{size} processes, eager-majority from other runs, rounds per second, simulated / recorded"
                report.rows.append(record.figure(place, [told / recorded for recorded, told in across]))
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
