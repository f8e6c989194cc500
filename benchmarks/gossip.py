"""Gossip where one random worker in eight is late in every step: what does each way of agreeing make of it?

The published regression (8,193 parameters, 256 examples on each of 8 workers), a step of 280 ms, and one worker, drawn
anew in every step, late by 200, 300 or 400 ms. Side by side, in real processes: torch DDP, D-PSGD on a ring, SGP (one
peer at a time), AD-PSGD, and eager-SGD solo, whose authors report 1.26 and 1.17 times the throughput of D-PSGD and SGP.
Each side waits by a rule of its own, so each is held against what its rule allows for the measured step without a
delay: everyone in every step (DDP), neighbours one step back (D-PSGD), givers of a step (SGP), nobody (AD-PSGD, solo).
The rules are reckoned out on drawn delays. The time to the same training loss stands beside it.

And by arithmetic, for 64 to 1,024 workers, by topology: rounds until numbers are within a hundredth of their mean,
next to what the spectral gap says, and the messages that takes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import readings
import record
from trainings import ALL_REDUCE, DDP, SOLO, Runs, Setting, Side, in_milliseconds

from quorate.topology.mixing import matrix, mixing_of
from quorate.topology.reading import topology_of

WORKERS = 8
PACE = 0.28
DELAYS = (0.2, 0.3, 0.4)
D_PSGD = Side(name="d-psgd", strategy="d-psgd")
SGP = Side(name="sgp", strategy="sgp")
AD_PSGD = Side(name="ad-psgd", strategy="ad-psgd")
SIDES = (DDP, D_PSGD, AD_PSGD, SGP, SOLO)
PUBLISHED = {"d-psgd": 1.26, "sgp": 1.17}
"""Throughput of eager-SGD solo over these (Li et al., PPoPP 2020; ResNet-50 on 64 workers)."""
LOSS = 4.7
RATE = 3.0
DRAWN = 4000
"""Steps over which a rule is reckoned out."""
TOPOLOGIES = ("complete", "one-peer-exponential", "exponential", "random:degree=4", "random-matching", "torus", "ring")
MOST_ROUNDS = 20_000


def seconds_by_rule(side: Side, step: float, delay: float) -> float:
    """Seconds of a step of `WORKERS` of which one, drawn, is late by `delay` in every step, waiting as `side` does."""
    if side in (AD_PSGD, SOLO):
        return step + delay / WORKERS
    if side is DDP:
        return step + delay
    draw = random.Random(1)
    topology = topology_of("ring" if side is D_PSGD else "one-peer-exponential", WORKERS)
    at = [0.0] * WORKERS
    for number in range(DRAWN):
        late = draw.randrange(WORKERS)
        came = [at[rank] + step + (delay if rank == late else 0.0) for rank in range(WORKERS)]
        sources = [[edge.peer for edge in topology.in_edges(rank, WORKERS, number)] for rank in range(WORKERS)]
        given = at if side is D_PSGD else came  # D-PSGD has given at the end of the step before
        at = [max(came[rank], *(given[peer] for peer in sources[rank])) for rank in range(WORKERS)]
    return sum(at) / WORKERS / DRAWN


def setting(delay: float, steps: int, *, is_quick: bool) -> Setting:
    return Setting(
        workers=WORKERS,
        steps=steps,
        batch=32 if is_quick else 256,
        workload={"points": 4096, "features": 1024} if is_quick else {},
        pace=in_milliseconds(PACE),
        imbalance=f"one-of:{in_milliseconds(delay)}" if delay else None,
        learning_rate_factor=RATE,
    )


def trained(runs: Runs, report: record.Report, delays: Sequence[float], repeats: int, *, is_quick: bool) -> None:
    """Real processes."""
    sides = (DDP, D_PSGD, AD_PSGD) if is_quick else SIDES
    undelayed: list[float] = []
    rates: dict[tuple[str, float], list[float]] = {}
    seconds: dict[tuple[str, float], list[float | None]] = {}
    for seed in range(repeats):
        plain = setting(0.0, 12 if is_quick else 40, is_quick=is_quick)
        undelayed.append(readings.step_seconds(runs.train(ALL_REDUCE, plain, seed)))
        for delay in delays:
            late = setting(delay, 14 if is_quick else 130, is_quick=is_quick)
            for side in (*sides[seed % len(sides) :], *sides[: seed % len(sides)]):
                run = runs.train(side, late, seed)
                rates.setdefault((side.name, delay), []).append(readings.gradients_per_second(run, late.batch))
                seconds.setdefault((side.name, delay), []).append(readings.seconds_to(LOSS, run))
    report.rows.append(record.figure("seconds of a step without delay", undelayed))
    for delay in DELAYS:
        word = in_milliseconds(delay)
        for side in SIDES:
            found = rates.get((side.name, delay))
            share = None
            if found is not None:
                report.rows.append(record.figure(f"{word}: gradients per second, {side.name}", found))
                allowed = [WORKERS / seconds_by_rule(side, step, delay) for step in undelayed]
                report.rows.append(record.figure(f"{word}: gradients per second, {side.name}, by its rule", allowed))
                share = record.median_of([mine / most for mine, most in zip(found, allowed, strict=True)])
                times = [one for one in seconds[side.name, delay] if one is not None]
                if times:
                    report.rows.append(record.figure(f"{word}: seconds to a loss of {LOSS:g}, {side.name}", times))
            if side is not DDP:
                name = f"{word}: gradients per second, {side.name}, of what its rule allows"
                report.bar(name, share, at_least=0.95)
        solo = rates.get((SOLO.name, delay))
        for other, published in PUBLISHED.items():
            theirs = rates.get((other, delay))
            ratios = [a / b for a, b in zip(solo, theirs, strict=True)] if solo and theirs else None
            name = f"{word}: gradients per second, eager-solo / {other} (published: {published:g} on 64 workers)"
            if ratios is not None:
                report.rows.append(record.figure(name, ratios))
            report.bar(name, record.median_of(ratios), at_least=1.0)


def consensus(report: record.Report, sizes: Sequence[int]) -> None:
    """By arithmetic: rounds until drawn numbers are within a hundredth of their mean."""
    for size in sizes:
        numbers = np.random.default_rng(1).standard_normal((size, 8))
        for name in TOPOLOGIES:
            topology = topology_of(name, size)
            mixing = mixing_of(topology, size) if size <= 256 else None
            matrices = [matrix(topology, size, round) for round in range(topology.cycle(size))]
            x, rounds = numbers, 0
            far = first = float(np.linalg.norm(x - x.mean(axis=0)))
            while far > first / 100 and rounds < MOST_ROUNDS:
                x = matrices[rounds % len(matrices)] @ x
                rounds += 1
                far = float(np.linalg.norm(x - x.mean(axis=0)))
            where = f"{name}, {size} workers"
            if rounds < MOST_ROUNDS:
                report.rows.append(record.figure(f"{where}: rounds to a hundredth of the distance", [float(rounds)]))
            if mixing is not None:
                report.rows.append(record.figure(f"{where}: the same, at most, by the gap", [mixing.rounds_to(0.01)]))
                sent = mixing.messages * rounds
                report.rows.append(record.figure(f"{where}: vectors that each worker sends meanwhile", [sent]))


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=3, help="of every run, each with a seed of its own (3)")
    options: argparse.Namespace = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    delays = (0.3,) if options.quick else DELAYS
    sides = 3 if options.quick else len(SIDES)
    report = record.Report("gossip", {"workers": WORKERS, "pace": PACE, "repeats": repeats, "loss": LOSS, "rate": RATE})
    consensus(report, (64,) if options.quick else (64, 256, 1024))
    with Runs(repeats * (1 + len(delays) * sides)) as runs:
        trained(runs, report, delays, repeats, is_quick=options.quick)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
