"""Is the strategy `adaptive` as fast as the best that could have been chosen beforehand?

The published regression in the small (1,024 features, 32 examples on each of 8 workers), in the virtual world with real
gradients, under five kinds of stragglers: none worth the name, one random worker in eight late in every step, one that
is always three times slower, batches whose times are drawn from those published of videos, and steps with a heavy tail,
as on a shared cloud. In each: seconds to the same training loss.

A first series of seeds chooses the best of all-reduce, fixed quorums and synchronous SGD with backup workers, whose
late gradients are dropped. A second series of other seeds pairs it with `adaptive`, which is told nothing. The ratio is
the time of `adaptive` to that of the chosen side, seed by seed. `--real` measures the random late worker in processes
too, with fewer sides.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import ALL_REDUCE, Runs, Setting, Side

WORKERS, FIRST, PAIRS = 8, 3, 5
LOSS = 4.7
RATE = 3.0
"""Factor of the workload's learning rate: half of the greatest at which synchronous training comes to the loss best."""
STEPS = 130
CASES = {
    "none": ("280ms", "normal:8ms:4ms"),
    "light": ("280ms", "one-of:300ms"),
    "persistent": ("280ms", "rank:3:x3"),
    "severe": ("trace:ucf101-lstm:x0.23", None),
    "heavy tail": ("100ms", "lognormal:60ms:1.3"),
}
"""By name: pace and imbalance."""
FIXED = tuple(Side(name=f"quorum of {k}", strategy="quorum", settings={"wait_for": k}) for k in (1, 2, 4, 6))
BACKUP = tuple(
    Side(name=f"{m} backup", strategy="backup-workers", settings={"wait_for": WORKERS - m}) for m in (1, 2, 4)
)
ADAPTIVE = Side(name="adaptive", strategy="adaptive")
MOST, HOLDING = 1.05, 4
"""The largest ratio, and the number of kinds in which it must hold."""
SMALL = {"points": 4096, "features": 1024}


def setting(case: str, rate: float, *, is_virtual: bool) -> Setting:
    pace, imbalance = CASES[case]
    return Setting(
        workers=WORKERS,
        steps=STEPS,
        batch=32,
        workload=SMALL,
        pace=pace,
        imbalance=imbalance,
        learning_rate_factor=rate,
        is_virtual=is_virtual,
    )


def seconds(runs: Runs, side: Side, of: Setting, seed: int) -> tuple[float, list[int]]:
    """Return the seconds to the loss, infinity where it is not reached, and the quorums that were chosen."""
    run = runs.train(side, of, seed)
    quorums = [row.settings["wait_for"] for row in run.ranks[0].rounds if row.settings]
    return readings.seconds_to(LOSS, run) or math.inf, quorums


def measure(runs: Runs, report: record.Report, of: Setting, name: str, sides: Sequence[Side], pairs: int) -> float:
    """Choose the best of the sides, and pair it with `adaptive`; return the median of the ratios."""
    first = range(min(FIRST, pairs))
    times = {side.name: [seconds(runs, side, of, seed)[0] for seed in first] for side in sides}
    for side, values in times.items():
        report.rows.append(record.figure(f"{name}: seconds to the loss in the first series, {side}", values))
    best = min(sides, key=lambda side: record.median_of(times[side.name]) or math.inf)
    ours, theirs, chosen = list[float](), list[float](), list[list[int]]()
    for seed in range(FIRST, FIRST + pairs):
        order = (best, ADAPTIVE) if seed % 2 else (ADAPTIVE, best)
        pair = {side.name: seconds(runs, side, of, seed) for side in order}
        ours.append(pair[ADAPTIVE.name][0])
        theirs.append(pair[best.name][0])
        chosen.append(pair[ADAPTIVE.name][1])
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    report.rows.append(record.figure(f"{name}: seconds to the loss, {best.name}", theirs))
    report.rows.append(record.figure(f"{name}: seconds to the loss, adaptive", ours))
    report.rows.append(record.figure(f"{name}: adaptive / {best.name}", ratios))
    report.settings[f"{name}: quorums chosen"] = chosen
    print(f"{name}: {best.name} is the best of the first series; adaptive chose {json.dumps(chosen)}", flush=True)
    return report.rows[-1].median


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"seeds of the second series ({PAIRS})")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="only these")
    parser.add_argument("--rate", type=float, default=RATE, help=f"factor of the learning rate ({RATE:g})")
    parser.add_argument("--real", action="store_true", help="the light case in real processes too, with fewer sides")
    options: argparse.Namespace = parser.parse_args()
    pairs = 1 if options.quick else options.pairs
    cases = ["light"] if options.quick else options.cases
    sides = (ALL_REDUCE, FIXED[0]) if options.quick else (ALL_REDUCE, *FIXED, *BACKUP)
    few = (ALL_REDUCE, FIXED[0], FIXED[1], BACKUP[0])
    report = record.Report(
        "adaptive", {"workers": WORKERS, "steps": STEPS, "pairs": pairs, "loss": LOSS, "rate": options.rate}
    )
    first = min(FIRST, pairs)
    with Runs(len(cases) * (first * len(sides) + 2 * pairs) + options.real * (first * len(few) + 2 * pairs)) as runs:
        ratios = {}
        for case in cases:
            of = setting(case, options.rate, is_virtual=True)
            ratios[case] = measure(runs, report, of, f"virtual, {case}", sides, pairs)
            report.bar(f"virtual, {case}: adaptive / the best of the first series", ratios[case], at_most=MOST)
        if options.real:
            of = setting("light", options.rate, is_virtual=False)
            ratio = measure(runs, report, of, "real, light", few, pairs)
            report.bar("real, light: adaptive / the best of the first series", ratio, at_most=MOST)
    holds = None if len(cases) < len(CASES) else sum(ratio <= MOST for ratio in ratios.values())
    report.bar(f"kinds of stragglers in which it is at most {MOST}", holds, at_least=HOLDING)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
