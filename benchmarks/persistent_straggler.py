"""What does one worker of four that is always three times slower cost?

A step takes 50 ms, and 150 on the last of four workers. Synchronous training takes 150 ms for every step. If nobody
ever waited, there would be 3/50 + 1/150 gradients a millisecond, 2.5 times as many as 4/150.

- equal shares of the data: gradients per second over DDP's, while all are at work;
- shared out as they are asked for: the time in which the same examples are computed, DDP's over ours;
- the slow worker counts: its share of the gradients that were applied, over its share of those that were computed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import ALL_REDUCE, DDP, QUORUM, SOLO, Runs, Setting, in_milliseconds

from quorate.report.figures.throughput import training_seconds

WORKERS, SLOW, TIMES = 4, 3, 3
PACE = 0.05
SHARES = ("static", "dynamic")


def setting(steps: int) -> Setting:
    """Without a slow worker."""
    workload = {"points": 4096, "features": 1024}
    return Setting(workers=WORKERS, steps=steps, batch=32, workload=workload, pace=in_milliseconds(PACE))


def ideal(step: float) -> float:
    """Gradients per second where nobody waits, over those where all wait for the slow one; `step` without it."""
    slow = step + (TIMES - 1) * PACE
    return ((WORKERS - 1) / step + 1 / slow) / (WORKERS / slow)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=5, help="of every run, each with a seed of its own (5)")
    options = parser.parse_args()
    repeats, steps = (1, 60) if options.quick else (options.repeats, 200)
    sides = (SOLO,) if options.quick else (SOLO, QUORUM)
    plain = setting(max(40, steps // 2))
    slowed = replace(setting(steps), imbalance=f"rank:{SLOW}:x{TIMES}")

    report = record.Report(
        "persistent_straggler", {"workers": WORKERS, "pace": PACE, "times": TIMES, "steps": steps, "repeats": repeats}
    )
    undelayed: list[float] = []
    rates: dict[str, list[float]] = {}
    found: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], list[float]] = {}
    with Runs(repeats * (2 + len(sides) * len(SHARES))) as runs:
        for seed in range(repeats):
            undelayed.append(readings.step_seconds(runs.train(ALL_REDUCE, plain, seed)))
            peer = runs.train(DDP, slowed, seed)
            peer_rate, peer_seconds = readings.gradients_per_second(peer, slowed.batch), training_seconds(peer)
            rates.setdefault(DDP.name, []).append(peer_rate)
            for side in sides:
                for share in SHARES:
                    run = runs.train(side, replace(slowed, share=share), seed)
                    rate = readings.gradients_per_second(run, slowed.batch)
                    rates.setdefault(f"{side.name}, {share}", []).append(rate)
                    seconds = training_seconds(run)
                    assert peer_seconds is not None and seconds is not None
                    ratio = rate / peer_rate if share == "static" else peer_seconds / seconds
                    found.setdefault((side.name, share), []).append(ratio)
                    applied = readings.share(readings.rounds_of(run).applied, SLOW)
                    computed = readings.share(readings.produced(run), SLOW)
                    counts.setdefault((side.name, share), []).append(applied / computed)

    ideals = [ideal(step) for step in undelayed]
    report.rows.append(record.figure("seconds of a step without a slow worker", undelayed))
    report.rows.append(record.figure("ideal ratio, where nobody waits", ideals))
    report.rows += [record.figure(f"gradients per second, {name}", values) for name, values in rates.items()]
    words = {
        "static": "gradients per second, {} / ddp, equal shares",
        "dynamic": "time for the same examples, ddp / {}, dynamic shares",
    }
    for (side, share), ratios in found.items():
        name = words[share].format(side)
        report.rows.append(record.figure(name, ratios))
        parts = [ratio / best for ratio, best in zip(ratios, ideals, strict=True)]
        report.rows.append(record.figure(f"{name}, of the ideal", parts))
        if side == SOLO.name:
            report.bar(f"{name}, of the ideal", report.rows[-1].median, at_least=0.97 if share == "static" else 0.9)
    for (side, share), values in counts.items():
        name = f"slow worker, applied / computed, {side}, {share} shares"
        report.rows.append(record.figure(name, values))
        if side == SOLO.name:
            report.bar(name, report.rows[-1].median, at_least=0.9)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
