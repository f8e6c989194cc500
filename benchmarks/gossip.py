"""Gossip where one random worker in eight is late in every step: what does each way of agreeing make of it?

The published regression (8,193 parameters, 256 examples on each of 8 workers), a step of 280 ms, and one worker, drawn
anew in every step, late by 200, 300 or 400 ms. Side by side, in real processes: torch DDP, D-PSGD on a ring, SGP (one
peer at a time), AD-PSGD, and eager-SGD solo, whose authors report 1.26 and 1.17 times the throughput of D-PSGD and SGP.
Each side waits by a rule of its own: for everyone in every step (DDP), neighbours one step back (D-PSGD), givers of a
step (SGP), nobody (AD-PSGD, solo). Each of ours is held against what its rule allows, twice: reckoned from the step
that is measured without a delay, and from the times for which its own workers computed. (Eight processes that come to
a step at the same moment share few cores, late ones have them for themselves: so more than the first can be reached.)

The time to the same training loss stands beside it, of a smaller problem (an eighth of the features and of the batch):
for virtual workers over some rates, and with --loss, alone, in real processes, all sides at the one rate at which all
come to it, each with the same seeds, with half the pace and half the delay.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import ALL_REDUCE, DDP, SOLO, Runs, Setting, Side, in_milliseconds
from waiting_rules import Rule, everyone, givers, neighbours_a_step_back, nobody, seconds_of_a_step, share_reached

WORKERS = 8
PACE = 0.28
DELAYS = (0.2, 0.3, 0.4)
TRAINED_AT = 0.3
"""The delay at which virtual sides are trained to the loss."""
SHORTER = 2
"""By what pace and delay are divided where real processes are trained to the loss."""
D_PSGD = Side(name="d-psgd", strategy="d-psgd")
SGP = Side(name="sgp", strategy="sgp")
AD_PSGD = Side(name="ad-psgd", strategy="ad-psgd")
SIDES = (DDP, D_PSGD, AD_PSGD, SGP, SOLO)
RULES = {
    "ddp": Rule("everyone", everyone),
    "d-psgd": Rule("neighbours, one step back", neighbours_a_step_back("ring", WORKERS)),
    "ad-psgd": Rule("nobody", nobody),
    "sgp": Rule("who gives to it", givers("one-peer-exponential", WORKERS)),
    "eager-solo": Rule("nobody", nobody),
}
PUBLISHED = {"d-psgd": 1.26, "sgp": 1.17}
"""Throughput of eager-SGD solo over these (Li et al., PPoPP 2020; ResNet-50 on 64 workers)."""
LOSS = 4.7
RATE = 2.0
"""The factor of the workload's learning rate in real processes."""
RATES = (2.0, 3.0, 4.0)
STEPS = 22
STEPS_TO_LOSS = 280
"""At the workload's own learning rate; at twice as much, half of them."""


def setting(
    delay: float, steps: int, rate: float = RATE, *, is_small: bool, is_virtual: bool = False, pace: float = PACE
) -> Setting:
    return Setting(
        workers=WORKERS,
        steps=steps,
        batch=32 if is_small else 256,
        workload={"points": 4096, "features": 1024} if is_small else {},
        pace=in_milliseconds(pace),
        imbalance=f"one-of:{in_milliseconds(delay)}" if delay else None,
        learning_rate_factor=rate,
        is_virtual=is_virtual,
    )


class Found:
    """What was read from the runs of all sides."""

    def __init__(self) -> None:
        self.undelayed: list[float] = []
        self.rates: dict[tuple[str, float], list[float]] = {}
        self.shares: dict[tuple[str, float], list[float]] = {}

    def note(self, side: Side, delay: float, run: readings.RunRecords, batch: int) -> None:
        self.rates.setdefault((side.name, delay), []).append(readings.gradients_per_second(run, batch))
        if side is not DDP:
            self.shares.setdefault((side.name, delay), []).append(share_reached(RULES[side.name], run))


def trained(runs: Runs, report: record.Report, repeats: int, *, is_quick: bool) -> None:
    """Real processes."""
    found = Found()
    sides, delays = ((DDP, D_PSGD, AD_PSGD), (0.3,)) if is_quick else (SIDES, DELAYS)
    for seed in range(repeats):
        plain = setting(0.0, 12 if is_quick else STEPS, is_small=is_quick)
        found.undelayed.append(readings.step_seconds(runs.train(ALL_REDUCE, plain, seed)))
        for delay in delays:
            late = setting(delay, 14 if is_quick else STEPS, is_small=is_quick)
            for side in (*sides[seed % len(sides) :], *sides[: seed % len(sides)]):
                found.note(side, delay, runs.train(side, late, seed), late.batch)
    report.rows.append(record.figure("seconds of a step without delay", found.undelayed))
    for delay in DELAYS:
        tell(report, found, delay)


def tell(report: record.Report, found: Found, delay: float) -> None:
    """Figures and bars of one delay."""
    word = in_milliseconds(delay)
    allowed: dict[str, list[float]] = {}
    for side in SIDES:
        rule, rates = RULES[side.name], found.rates.get((side.name, delay))
        allowed[side.name] = [WORKERS / seconds_of_a_step(rule, WORKERS, step, delay) for step in found.undelayed]
        name = f"{word}: gradients per second that waiting for {rule.words} allows"
        if all(row.name != name for row in report.rows):
            report.rows.append(record.figure(name, allowed[side.name]))
        if rates is not None:
            report.rows.append(record.figure(f"{word}: gradients per second, {side.name}", rates))
        if side is not DDP:
            of_step = [a / b for a, b in zip(rates, allowed[side.name], strict=True)] if rates else None
            name = f"{word}: gradients per second, {side.name}, of what its rule allows for the undelayed step"
            report.bar(name, record.median_of(of_step), at_least=0.95)
            shares = found.shares.get((side.name, delay))
            name = f"{word}: steps per second, {side.name}, of what its rule allows for the times it computed"
            report.bar(name, record.median_of(shares), at_least=0.95)
    solo = found.rates.get((SOLO.name, delay))
    for other, published in PUBLISHED.items():
        theirs = found.rates.get((other, delay))
        ratios = [a / b for a, b in zip(solo, theirs, strict=True)] if solo and theirs else None
        name = f"{word}: gradients per second, eager-solo / {other}"
        by_rule = [a / b for a, b in zip(allowed[SOLO.name], allowed[other], strict=True)]
        report.rows.append(record.figure(f"{name}, by their rules", by_rule))
        if ratios is not None:
            report.rows.append(record.figure(name, ratios))
        report.bar(f"{name} (published: {published:g} on 64 workers)", record.median_of(ratios), at_least=1.0)


def to_the_loss(runs: Runs, report: record.Report, rates: Sequence[float], sides: Sequence[Side]) -> None:
    """Virtual seconds to the loss, by learning rate; all-reduce stands for DDP, which cannot be virtual."""
    for rate in rates:
        for side in sides:
            steps = max(60, round(STEPS_TO_LOSS / rate))
            run = runs.train(side, setting(TRAINED_AT, steps, rate, is_small=True, is_virtual=True), 1)
            seconds = readings.seconds_to(LOSS, run)
            where = f"virtual, {in_milliseconds(TRAINED_AT)}, rate x{rate:g}"
            if seconds is not None:
                report.rows.append(record.figure(f"{where}: seconds to a loss of {LOSS:g}, {side.name}", [seconds]))
            report.rows.append(record.figure(f"{where}: final loss, {side.name}", [readings.final_loss(run)]))


def really_to_the_loss(
    runs: Runs, report: record.Report, sides: Sequence[Side], repeats: int, *, shorter: float
) -> None:
    """Seconds to the loss in real processes: all sides at one rate, each with every seed, in turn."""
    late = setting(TRAINED_AT / shorter, round(STEPS_TO_LOSS / RATE), is_small=True, pace=PACE / shorter)
    seconds: dict[str, list[float | None]] = {side.name: [] for side in sides}
    finals: dict[str, list[float]] = {side.name: [] for side in sides}
    for seed in range(1, repeats + 1):
        for side in (*sides[seed % len(sides) :], *sides[: seed % len(sides)]):
            run = runs.train(side, late, seed)
            seconds[side.name].append(readings.seconds_to(LOSS, run))
            finals[side.name].append(readings.final_loss(run))
    where = f"real, pace {late.pace}, {late.imbalance}, rate x{RATE:g}"
    for name, found in seconds.items():
        there = [one for one in found if one is not None]
        report.rows.append(record.figure(f"{where}: final loss, {name}", finals[name]))
        report.rows.append(
            record.figure(f"{where}: share of runs that came to {LOSS:g}, {name}", [len(there) / repeats])
        )
        if len(there) == repeats:
            report.rows.append(record.figure(f"{where}: seconds to a loss of {LOSS:g}, {name}", there))
    for name, found in seconds.items():
        pairs = [(a, b) for a, b in zip(found, seconds[DDP.name], strict=True) if a is not None and b is not None]
        if name != DDP.name and len(pairs) == repeats:
            report.rows.append(
                record.figure(f"{where}: seconds to a loss of {LOSS:g}, ddp / {name}", [b / a for a, b in pairs])
            )


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=3, help="of every run, each with a seed of its own (3)")
    parser.add_argument("--loss", action="store_true", help="the time to the loss in real processes, and nothing else")
    options: argparse.Namespace = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    rates, virtual = ((2.0,), (D_PSGD,)) if options.quick else (RATES, (ALL_REDUCE, *SIDES[1:]))
    real = (DDP, AD_PSGD) if options.quick else SIDES
    total = repeats * (1 + (3 if options.quick else len(DELAYS) * len(SIDES))) + len(rates) * len(virtual)
    total = repeats * len(real) if options.loss else total
    shorter = (SHORTER * (3 if options.quick else 1)) if options.loss else 1
    settings = {"workers": WORKERS, "pace": PACE / shorter, "repeats": repeats, "loss": LOSS, "rate": RATE}
    report = record.Report("gossip", settings)
    with Runs(total) as runs:
        if options.loss:
            really_to_the_loss(runs, report, real, repeats, shorter=shorter)
        else:
            to_the_loss(runs, report, rates, virtual)
            trained(runs, report, repeats, is_quick=options.quick)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
