"""How near does training with token budgets come to the time in which nobody waits, where lengths vary as in videos?

Eight workers train on the functions of `severe_imbalance`, uncut. As there, a step takes a fixed time and so much for
each token of its batch, padding included, and the times spread as those of videos, at about a third of them. Workers
sleep for this time, and compute hardly anything. Three ways beside each other:

- `ddp`: torch DDP on 16 functions in a batch, where all wait for the longest batch in every step;
- a quorum of 4 on such batches: the one that loses no accuracy in `severe_imbalance`, and so the best one there;
- token budgets: synchronous steps on batches of functions of similar length, of as many tokens as those of 16 in the
  mean (`tokens_per_batch=` of `quorate.loader`).

The ideal of a run is the rate at which its workers would train their own batches if none ever waited. So the share of
the ideal is that of the workers' own work in the time of their steps. Bar: token budgets reach 0.95 of theirs.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
from severe_imbalance import BATCH, QUORUMS, WORKERS, WORKLOAD
from trainings import ALL_REDUCE, DDP, Runs, Setting, Side

from quorate.report.figures.throughput import window_of
from quorate.report.reading.run import RunRecords

PACE = "92ms+43.6us/token"
"""Twice as long as in `severe_imbalance`: an exchange of eight processes on few cores takes a smaller share."""
TOKENS = 16 * 441
"""A budget as large as a batch of 16 functions, the longest of which has 441 words in the mean."""
BUDGETS = Side(name="token budgets", strategy=ALL_REDUCE.strategy)
SIDES = (DDP, QUORUMS[2], BUDGETS)
STEPS, QUICK_STEPS = 60, 12
SEEDS = (0, 1, 2)
TRAINING = Path(__file__).resolve().with_name("token_budget_training.py")


@dataclass(frozen=True)
class Reading:
    """What one run says, after its warm-up."""

    rate: float
    """Examples per second of all workers."""
    share: float
    """Of the ideal, where nobody waits."""
    spread: float
    """Standard deviation over mean of the workers' own times of a step."""

    @property
    def ideal(self) -> float:
        return self.rate / self.share


def make(runs: Runs, side: Side, seed: int, steps: int) -> Reading:
    setting = Setting(workers=WORKERS, steps=steps, batch=BATCH, pace=PACE)
    size = ["--tokens", str(TOKENS)] if side is BUDGETS else ["--batch", str(BATCH)]
    arguments = ["--settings", json.dumps(WORKLOAD), "--steps", str(steps), *size]
    return read(runs.script(str(TRAINING), arguments, side, setting, seed))


def read(run: RunRecords) -> Reading:
    window = window_of(run, run.usual_warm_up)
    if window is None or window.examples_per_second is None:
        raise SystemExit("a run was too short to be measured")
    steps = [step for of_worker in run.after(run.usual_warm_up).values() for step in of_worker]
    own = [step.arrive - step.begin for step in steps]
    return Reading(
        rate=window.examples_per_second,
        share=sum(own) / sum(step.end - step.begin for step in steps),
        spread=statistics.stdev(own) / statistics.fmean(own),
    )


def main() -> int:
    options = record.arguments(__doc__ or "").parse_args()
    seeds, steps = (SEEDS[:1], QUICK_STEPS) if options.quick else (SEEDS, STEPS)
    readings: dict[str, list[Reading]] = {side.name: [] for side in SIDES}
    with Runs(len(SIDES) * len(seeds)) as runs:
        for seed in seeds:
            for side in (*SIDES[seed % 3 :], *SIDES[: seed % 3]):
                readings[side.name].append(make(runs, side, seed, steps))
    report = record.Report("token_budgets", {"workers": WORKERS, "pace": PACE, "tokens": TOKENS, "steps": steps})
    ddp = readings[DDP.name]
    for name, found in readings.items():
        report.rows.append(record.figure(f"examples per second, {name}", [one.rate for one in found]))
        if name != DDP.name:
            ratios = [one.rate / other.rate for one, other in zip(found, ddp, strict=True)]
            report.rows.append(record.figure(f"examples per second, {name} / ddp", ratios))
            ideals = [one.rate / other.ideal for one, other in zip(found, ddp, strict=True)]
            report.rows.append(record.figure(f"examples per second, {name} / ideal of ddp's batches", ideals))
        report.rows.append(
            record.figure(f"share of the ideal where nobody waits, {name}", [one.share for one in found])
        )
        report.rows.append(record.figure(f"spread of a worker's own steps, {name}", [one.spread for one in found]))
    shares = [one.share for one in readings[BUDGETS.name]]
    report.bar("share of the ideal where nobody waits, token budgets", record.median_of(shares), at_least=0.95)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
