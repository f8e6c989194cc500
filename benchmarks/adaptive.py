"""Is the strategy `adaptive` as fast as the best that could have been chosen beforehand?

The published regression in the small (1,024 features, 32 examples on each of 8 workers), in the virtual world with real
gradients, under no imbalance worth the name, one random worker in eight late in every step, one that is always three
times slower, and batches whose times are drawn from those published of videos. In each: seconds to the same training
loss under all-reduce, under fixed quorums, and under `adaptive`, which is told nothing. The ratio is that of the better
of all-reduce and the best fixed quorum (in the median, found out afterwards) to `adaptive`, seed by seed. `--real`
measures the random late worker in real processes too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import ALL_REDUCE, Runs, Setting, Side

WORKERS, PAIRS = 8, 5
LOSS = 4.7
RATE = 3.0
"""Factor of the workload's learning rate: half of the greatest at which synchronous training comes to the loss best."""
STEPS = 130
CASES = {
    "none": ("280ms", "normal:8ms:4ms"),
    "light": ("280ms", "one-of:300ms"),
    "persistent": ("280ms", "rank:3:x3"),
    "severe": ("trace:ucf101-lstm:x0.23", None),
}
"""By name: pace and imbalance."""
FIXED = tuple(Side(name=f"quorum of {k}", strategy="quorum", settings={"wait_for": k}) for k in (1, 2, 4, 6))
ADAPTIVE = Side(name="adaptive", strategy="adaptive")
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


def measure(
    runs: Runs, report: record.Report, case: str, sides: Sequence[Side], pairs: int, rate: float, *, is_virtual: bool
) -> None:
    """All sides in turn, seed by seed; figures and the bar of the case."""
    what = f"{'virtual' if is_virtual else 'real'}, {case}"
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    chosen: list[list[int]] = []
    for seed in range(pairs):
        for side in (*sides[seed % len(sides) :], *sides[: seed % len(sides)]):
            run = runs.train(side, setting(case, rate, is_virtual=is_virtual), seed)
            times[side.name].append(readings.seconds_to(LOSS, run) or float("inf"))
            if side is ADAPTIVE:
                chosen.append([one.settings["wait_for"] for one in run.ranks[0].rounds if one.settings])
    for name, found in times.items():
        report.rows.append(record.figure(f"{what}: seconds to the loss, {name}", found))
    others = {name: record.median_of(found) or 0.0 for name, found in times.items() if name != ADAPTIVE.name}
    best = min(others, key=lambda name: others[name])
    ratios = [theirs / ours for theirs, ours in zip(times[best], times[ADAPTIVE.name], strict=True)]
    report.rows.append(record.figure(f"{what}: seconds to the loss, {best} / adaptive", ratios))
    report.settings[f"{what}: quorums chosen"] = chosen
    print(f"{what}: {best} is the best; adaptive chose {json.dumps(chosen)}", flush=True)
    name = f"{what}: upper end of the 95% interval of the best other's seconds / adaptive's"
    report.bar(name, report.rows[-1].high, at_least=0.95)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"seeds ({PAIRS})")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="only these")
    parser.add_argument("--rate", type=float, default=RATE, help=f"factor of the learning rate ({RATE:g})")
    parser.add_argument("--real", action="store_true", help="the light case in real processes too, with fewer sides")
    options: argparse.Namespace = parser.parse_args()
    pairs = 1 if options.quick else options.pairs
    cases = ["light"] if options.quick else options.cases
    sides = (ALL_REDUCE, FIXED[0], ADAPTIVE) if options.quick else (ALL_REDUCE, *FIXED, ADAPTIVE)
    few = (ALL_REDUCE, FIXED[0], FIXED[1], ADAPTIVE)
    report = record.Report(
        "adaptive", {"workers": WORKERS, "steps": STEPS, "pairs": pairs, "loss": LOSS, "rate": options.rate}
    )
    with Runs(pairs * (len(cases) * len(sides) + (len(few) if options.real else 0))) as runs:
        for case in CASES:
            if case in cases:
                measure(runs, report, case, sides, pairs, options.rate, is_virtual=True)
            else:
                name = f"virtual, {case}: upper end of the 95% interval of the best other's seconds / adaptive's"
                report.bar(name, None, at_least=0.95)
        if options.real:
            measure(runs, report, "light", few, pairs, options.rate, is_virtual=False)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
