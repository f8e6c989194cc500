"""Where does the throughput of wait-avoiding group averaging come from?

Its authors report, for reinforcement learning on 1,024 GPUs, up to 2.1 times the throughput of other ways to train
without a parameter server. There the time of a step varies widely: 1.7 to 43.5 s, most below 2 s, as different
episodes take different time. Of that only these numbers are known; here what a step takes above 1.7 s is lognormal
with a median of 0.3 s, wide enough that of some thousand draws the greatest is near 43.5.

- times alone: every way of waiting (for all in every step, for a neighbour, for all every 8 steps, for nobody),
  reckoned out for 64 and for 1,024 workers with these times; messages take none.
- virtual workers: the strategies themselves, with gradients of a tiny model, and times drawn in the same way: seconds
  of a step, held against the way of waiting, reckoned with the times that their own workers computed for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import record
from numpy.typing import NDArray
from trainings import Runs, Setting, Side

from quorate.compare.grid import SCRIPT
from quorate.core.durations import Sampled
from quorate.launch.warm.request import VirtualRun
from quorate.report.reading.run import RunRecords

LEAST, ABOVE, WIDTH, GREATEST = 1.7, 0.3, 1.37, 43.5
PERIOD = 8
PERIODS = (2, 4, 8, 16, 32)
"""From one mean of all to the next, of times alone."""
PUBLISHED = 2.1
STEPS = 240
"""Of times alone."""
Times = NDArray[np.float64]
Rule = Callable[[int, Times, Times], Times]
"""(step, ends of the step before, arrivals) -> ends."""


def everyone(step: int, before: Times, came: Times) -> Times:
    return np.full_like(came, came.max())


def now_and_then(step: int, before: Times, came: Times, period: int = PERIOD) -> Times:
    return everyone(step, before, came) if (step + 1) % period == 0 else came


def ring_a_step_back(step: int, before: Times, came: Times) -> Times:
    return np.maximum(came, np.maximum(np.roll(before, 1), np.roll(before, -1)))


def one_giver(step: int, before: Times, came: Times) -> Times:
    hops = max(1, (len(came) - 1).bit_length())
    return np.maximum(came, np.roll(came, 1 << step % hops))


def nobody(step: int, before: Times, came: Times) -> Times:
    return came


SIDES: list[tuple[Side, Rule]] = [
    (Side(name="all-reduce", strategy="all-reduce"), everyone),
    (Side(name="d-psgd", strategy="d-psgd"), ring_a_step_back),
    (Side(name="sgp", strategy="sgp"), one_giver),
    (Side(name="local-sgd", strategy="local-sgd", settings={"sync_every": PERIOD}), now_and_then),
    (Side(name="group-averaging", strategy="group-averaging", settings={"sync_every": PERIOD}), now_and_then),
    (Side(name="ad-psgd", strategy="ad-psgd"), nobody),
]


def reckoned(rule: Rule, own: Times) -> float:
    """Seconds of a step of workers that compute for `own` (steps, workers) seconds, and wait as the rule says."""
    at = np.zeros(own.shape[1])
    for step, row in enumerate(own):
        at = rule(step, at, at + row)
    return float(at.mean()) / len(own)


def drawn(workers: int, steps: int, seed: int) -> Times:
    above = Sampled("lognormal", ABOVE, WIDTH, seed)
    own = [[LEAST + above(rank, step) for rank in range(workers)] for step in range(steps)]
    return np.minimum(np.array(own), GREATEST)


def own_times(run: RunRecords) -> Times:
    """From the beginning of every step until its worker had its gradient, (steps, workers)."""
    steps = min(len(one.steps) for one in run.ranks)
    return np.array([[one.steps[step].arrive - one.steps[step].begin for one in run.ranks] for step in range(steps)])


def seconds_of_a_step(run: RunRecords) -> float:
    """Virtual, in the mean over workers."""
    return float(np.mean([(one.steps[-1].end - one.steps[0].begin) / len(one.steps) for one in run.ranks]))


def main() -> int:
    parser = record.arguments(__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=32, help="virtual ones, of the strategies themselves (32)")
    parser.add_argument("--periods", type=int, default=3, help="of 8 steps, of virtual workers (3)")
    parser.add_argument("--repeats", type=int, default=2, help="seeds (2)")
    options = parser.parse_args()
    workers, steps, repeats = options.workers, PERIOD * options.periods, options.repeats
    if options.quick:
        workers, steps, repeats = 8, PERIOD, 1
    sides = [SIDES[2], SIDES[4]] if options.quick else SIDES
    report = record.Report("wait_avoiding", {"workers": workers, "steps": steps, "repeats": repeats})
    for size in (64, 1024):
        times = [drawn(size, 2 * PERIOD if options.quick else STEPS, seed) for seed in range(repeats)]
        rules = {side.name: rule for side, rule in SIDES}
        rules |= {f"group-averaging, tau {n}": partial(now_and_then, period=n) for n in PERIODS if n != PERIOD}
        alone = {name: [reckoned(rule, own) for own in times] for name, rule in rules.items()}
        for name, found in alone.items():
            report.rows.append(record.figure(f"times alone, {size}: seconds of a step, {name}", found))
        for name, found in alone.items():
            ratios = [theirs / ours for theirs, ours in zip(alone["sgp"], found, strict=True)]
            report.rows.append(record.figure(f"times alone, {size}: throughput, {name} / sgp", ratios))
    late = Setting(
        workers=workers, steps=steps, pace=f"{LEAST}s", imbalance=f"lognormal:{ABOVE}s:{WIDTH}", share="static"
    )
    work = ["--settings", '{"examples": 512, "features": 4}', "--batch", "4"]
    arguments = ["least-squares", *work, "--epochs", repr(steps * workers * 4 / 512), "--evaluations", "1"]
    off: list[float] = []
    with Runs(repeats * len(sides)) as runs:
        for side, rule in sides:
            told, shares = [], []
            for seed in range(repeats):
                virtual = VirtualRun(seed=seed, compute="constant:0", latency=1e-5)
                run = runs.script(str(SCRIPT), arguments, side, late, seed, virtual=virtual)
                told.append(seconds_of_a_step(run))
                shares.append(told[-1] / reckoned(rule, own_times(run)))
            report.rows.append(record.figure(f"virtual, {workers}: seconds of a step, {side.name}", told))
            report.rows.append(record.figure(f"virtual, {workers}: {side.name}, of what its rule says", shares))
            off += [abs(share - 1) for share in shares]
    gain = float(np.median(alone["sgp"]) / np.median(alone["group-averaging"]))
    report.bar(
        "times alone, 1024: throughput, group-averaging / sgp", None if options.quick else gain, at_least=PUBLISHED
    )
    report.bar("virtual workers off their rules by", max(off), at_most=0.1)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
