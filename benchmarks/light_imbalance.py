"""How much faster is eager-SGD where one random worker in eight is late in every step?

The published regression (8,193 parameters, 256 examples on each of 8 workers), a step of 280 ms, and one worker, drawn
anew in every step, late by 200, 300 or 400 ms. eager-SGD's authors report 1.50, 1.75 and 2.01 for solo over synchronous
at equal loss. Two questions:

- gradients per second, of all workers, over DDP's, in real processes. If nobody ever waited it would be
  (T + d) / (T + d/8), with T the step that is measured without a delay. (Eight processes that come to a step at the
  same moment share few cores, late ones have them for themselves: so more than that ideal can be reached. With T the
  pace alone the ideal is greatest; the share of that is told as well.)
- the time to the same training loss. In real processes at one learning rate (the throughput runs'); over a grid of
  rates in the virtual twin (virtual workers and virtual seconds, an eighth of the features and of the batch, so that
  both their ratios are the published ones) and, with --full, in real processes at 300 ms. Where synchronous SGD is
  virtual it is all-reduce, since DDP cannot be.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import ALL_REDUCE, DDP, MAJORITY, SOLO, Runs, Setting, Side, in_milliseconds

WORKERS = 8
PACE = 0.28
PUBLISHED = {0.2: 1.50, 0.3: 1.75, 0.4: 2.01}
"""Solo over synchronous at equal loss, by delay (Li et al., PPoPP 2020)."""
LOSS = 4.7
"""The published final loss; here of training, where both sides are timed."""
USUAL = 3.0
"""The factor of the workload's learning rate in runs that are about throughput."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Of the workload's learning rate; synchronous SGD is fastest inside this grid."""
SMALL = {"points": 4096, "features": 1024}
SMALL_BATCH = 32

ONE_RATE = tuple(f"real, {in_milliseconds(delay)}" for delay in PUBLISHED)
"""What is measured at one learning rate only."""

Times = dict[tuple[str, float], list[tuple[float | None, float]]]
"""By side and factor of the learning rate: seconds to the loss, and the final loss, seed by seed."""


def steps_for(factor: float, *, is_small: bool) -> int:
    """Enough to come to the loss at that learning rate, where a rate can."""
    return max(120, math.ceil(215 / factor)) if is_small else max(110, math.ceil(390 / factor))


def setting(delay: float, factor: float, steps: int, *, is_small: bool = False, is_virtual: bool = False) -> Setting:
    return Setting(
        workers=WORKERS,
        steps=steps,
        batch=SMALL_BATCH if is_small else 256,
        workload=SMALL if is_small else {},
        pace=in_milliseconds(PACE),
        imbalance=f"one-of:{in_milliseconds(delay)}" if delay else None,
        learning_rate_factor=factor,
        is_virtual=is_virtual,
    )


def throughput(runs: Runs, report: record.Report, repeats: int, *, is_quick: bool) -> None:
    """Real processes: gradients per second, and the time to the loss at one learning rate."""
    sides = (DDP, SOLO) if is_quick else (DDP, ALL_REDUCE, SOLO, MAJORITY)
    delays = (0.3,) if is_quick else tuple(PUBLISHED)
    steps = 16 if is_quick else steps_for(USUAL, is_small=False)
    undelayed: list[float] = []
    rates: dict[tuple[str, float], list[float]] = {}
    times: dict[float, Times] = {delay: {} for delay in delays}
    for seed in range(repeats):
        plain = setting(0.0, USUAL, 12 if is_quick else 40, is_small=is_quick)
        undelayed.append(readings.step_seconds(runs.train(ALL_REDUCE, plain, seed)))
        for delay in delays:
            late = setting(delay, USUAL, steps, is_small=is_quick)
            for side in turned(sides, seed):
                run = runs.train(side, late, seed)
                rates.setdefault((side.name, delay), []).append(readings.gradients_per_second(run, late.batch))
                note(times[delay], side, USUAL, run)
    report.rows.append(record.figure("real: seconds of a step without delay", undelayed))
    for delay, published in PUBLISHED.items():
        word = in_milliseconds(delay)
        shares = None
        for side in sides if delay in delays else ():
            found = rates[side.name, delay]
            report.rows.append(record.figure(f"real, {word}: gradients per second, {side.name}", found))
            if side is not DDP:
                ratios = [mine / ddp for mine, ddp in zip(found, rates[DDP.name, delay], strict=True)]
                report.rows.append(record.figure(f"real, {word}: gradients per second, {side.name} / ddp", ratios))
            if side is SOLO:
                ideals = [(step + delay) / (step + delay / WORKERS) for step in undelayed]
                report.rows.append(record.figure(f"real, {word}: ideal ratio, where nobody waits", ideals))
                pace = (PACE + delay) / (PACE + delay / WORKERS)
                name = f"real, {word}: gradients per second, eager-solo / ddp, of the ideal for a step of just the pace"
                report.rows.append(record.figure(name, [ratio / pace for ratio in ratios]))
                shares = [ratio / ideal for ratio, ideal in zip(ratios, ideals, strict=True)]
        name = f"real, {word}: gradients per second, eager-solo / ddp, of the ideal"
        report.bar(name, record.median_of(shares), at_least=1.0)
        found_at = {} if is_quick or delay not in delays else times[delay]
        tell(report, f"real, {word}", found_at, DDP, published)


def grid(runs: Runs, what: str, sides: Sequence[Side], late: Sequence[Setting], seeds: int) -> Times:
    """Every side at every learning rate."""
    times: Times = {}
    for seed in range(seeds):
        for number, one in enumerate(late):
            for side in turned(sides, seed + number):
                assert one.learning_rate_factor is not None
                note(times, side, one.learning_rate_factor, runs.train(side, one, seed))
    show(what, times, sides)
    return times


def note(times: Times, side: Side, factor: float, run: readings.RunRecords) -> None:
    times.setdefault((side.name, factor), []).append((readings.seconds_to(LOSS, run), readings.final_loss(run)))


def show(what: str, times: Times, sides: Sequence[Side]) -> None:
    """The whole grid, medians."""
    print(f"{what}: seconds to a training loss of {LOSS:g} (final loss on held-out points)")
    print("  learning rate  " + "".join(f"{side.name:>22s}" for side in sides))
    for factor in sorted({factor for _, factor in times}):
        cells = []
        for side in sides:
            seconds, final = typical(times, side, factor), record.median_of([f for _, f in times[side.name, factor]])
            cells.append(f"{'-' if seconds is None else f'{seconds:.1f}':>12s} ({final:7.4g})")
        print(f"  x{factor:<13g}  " + "".join(f"{cell:>22s}" for cell in cells), flush=True)


def typical(times: Times, side: Side, factor: float) -> float | None:
    """The median of the seconds; None where any run did not come to the loss."""
    found = [seconds for seconds, _ in times.get((side.name, factor), [])]
    return record.median_of([one for one in found if one is not None]) if found and None not in found else None


def tell(report: record.Report, what: str, times: Times, synchronous: Side, published: float) -> None:
    """The figures of one grid (or of one rate), and its bars.

    They are held at learning rates up to half of the one at which `synchronous` comes to the loss first: above, what
    is late costs more than it gains.
    """
    factors = sorted({factor for _, factor in times})
    best: dict[str, tuple[float, float]] = {}
    for side in (synchronous, SOLO, MAJORITY):
        reached = [(seconds, factor) for factor in factors if (seconds := typical(times, side, factor)) is not None]
        for _, factor in reached:
            found = [seconds for seconds, _ in times[side.name, factor]]
            report.rows.append(record.figure(f"{what}, rate x{factor:g}: seconds to the loss, {side.name}", found))
        if reached:
            best[side.name] = min(reached)
    least, most = [], []
    for factor in factors:
        theirs, ours = times[synchronous.name, factor], times[SOLO.name, factor]
        is_held = len(factors) == 1 or (synchronous.name in best and factor <= best[synchronous.name][1] / 2)
        if typical(times, synchronous, factor) is not None and typical(times, SOLO, factor) is not None:
            ratios = [their / our for (their, _), (our, _) in zip(theirs, ours, strict=True)]
            name = f"{what}, rate x{factor:g}: seconds to the loss, {synchronous.name} / eager-solo"
            report.rows.append(record.figure(name, ratios))
            if is_held:
                least.append(report.rows[-1].median)
        elif is_held and typical(times, synchronous, factor) is not None:
            least.append(0.0)  # it never came to the loss
        if is_held:
            most.append(record.median_of([our / their for (_, their), (_, our) in zip(theirs, ours, strict=True)]))
    if len(factors) > 1 and {synchronous.name, SOLO.name} <= best.keys():
        (their, their_factor), (our, our_factor) = best[synchronous.name], best[SOLO.name]
        name = (
            f"{what}, {synchronous.name} at x{their_factor:g} / eager-solo at x{our_factor:g}, each its best: seconds"
        )
        report.rows.append(record.figure(name, [their / our]))
    where = f"rate x{USUAL:g}" if what in ONE_RATE else f"rates up to half of {synchronous.name}'s best"
    name = f"{what}: seconds to the loss, {synchronous.name} / eager-solo, {where}"
    report.bar(name, min(least, default=None), at_least=published)
    name = f"{what}: final loss, eager-solo / {synchronous.name}, {where}"
    report.bar(name, max(most, default=None), at_most=1.02)


def turned(sides: Sequence[Side], number: int) -> Sequence[Side]:
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=3, help="of every run, each with a seed of its own (3)")
    parser.add_argument(
        "--full", action="store_true", help="a grid of learning rates in real processes too (300 ms, one seed)"
    )
    options: argparse.Namespace = parser.parse_args()
    is_quick, repeats = options.quick, 1 if options.quick else options.repeats
    factors = (2.0, 6.0) if is_quick else FACTORS
    delays = (0.3,) if is_quick else tuple(PUBLISHED)
    virtual_sides = (ALL_REDUCE, SOLO) if is_quick else (ALL_REDUCE, SOLO, MAJORITY)
    real_factors = [factor for factor in FACTORS if 1 <= factor <= 8] if options.full else []
    total = repeats * (1 + len(delays) * (2 if is_quick else 4) + len(delays) * len(factors) * len(virtual_sides))
    total += 3 * len(real_factors)

    report = record.Report(
        "light_imbalance",
        {"workers": WORKERS, "pace": PACE, "repeats": repeats, "loss": LOSS, "rates": list(factors)},
    )
    with Runs(total) as runs:
        throughput(runs, report, repeats, is_quick=is_quick)
        for delay, published in PUBLISHED.items():
            what, times = f"virtual, {in_milliseconds(delay)}", {}
            if delay in delays:
                late = [setting(delay, f, steps_for(f, is_small=True), is_small=True, is_virtual=True) for f in factors]
                times = grid(runs, what, virtual_sides, late, repeats)
            tell(report, what, times, ALL_REDUCE, published)
        what, times = "real, 300ms, grid", {}
        if real_factors:
            late = [setting(0.3, f, steps_for(f, is_small=False)) for f in real_factors]
            times = grid(runs, what, (DDP, SOLO, MAJORITY), late, 1)
        tell(report, what, times, DDP, PUBLISHED[0.3])
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
