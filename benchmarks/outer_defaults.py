"""Which outer step suits which period: the sweep from which the usual outer rate and momentum of `diloco` follow.

Least squares, images of `digits` with noise and text of `stdlib-bytes`, read by networks of one hidden layer; 4
workers; SGD with a momentum of 0.9, and AdamW, at a rate that falls along a cosine. At a period H there are some 40
outer steps, at least 300 and at most 4,000 local ones. Figures are held-out losses over that of all-reduce with the
same rate, which is not tuned anew: with a small rate a long outer step trains faster, so a ratio below 1 is no merit of
its own. The bar is on safety: the usual setting of each period is, in its worst cell, at most 1.1 times the best of all
fixed settings, and at most that of the published one.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch
from outer_trainings import TASKS, Arm, Cell, trained

from quorate.strategies.parts.local_steps import Period
from quorate.strategies.parts.outer_steps import PUBLISHED, usual_outer

WORKERS, PERIODS, OUTER_STEPS, LEAST, MOST = 4, (2, 4, 8, 16, 32, 64), 40, 300, 4000
ARMS = [Arm(rate, momentum) for rate in (0.7, 1.0) for momentum in (0.0, 0.3, 0.5, 0.7, 0.9)]
FACTOR = 1.1


def main() -> int:
    """Measure, print, and hold the bars."""
    parser = record.arguments(__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs of each (1)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    periods, tasks = ((4, 16), ("least squares", "digits")) if options.quick else (PERIODS, tuple(TASKS))
    report = record.Report("outer_defaults", {"seeds": options.seeds, "tasks": tasks, "workers": WORKERS})
    for period in periods:
        steps = max(LEAST, min(OUTER_STEPS * period, MOST))
        ratios: dict[Arm, list[float]] = {arm: [] for arm in ARMS}
        for task in tasks:
            for inner in ("sgd", "adamw"):
                measure(Cell(task, WORKERS, period, inner), steps, options.seeds, ratios)
        figures(report, period, ratios)
    return report.show(options)


def measure(cell: Cell, steps: int, seeds: int, ratios: dict[Arm, list[float]]) -> None:
    """Add the median ratio of each setting in one cell."""
    bases = [trained(cell, [], seed, steps)[0] for seed in range(seeds)]
    losses = [trained(cell, ARMS, seed, steps) for seed in range(seeds)]
    for place, arm in enumerate(ARMS):
        own = statistics.median(row[place] / base for row, base in zip(losses, bases, strict=True))
        ratios[arm].append(own)
    shown = "  ".join(f"{arm}: {ratios[arm][-1]:.3f}" for arm in ARMS)
    sys.stderr.write(f"{cell.task}, {cell.inner}, H={cell.period}, {steps} steps  {shown}\n")


def figures(report: record.Report, period: int, ratios: dict[Arm, list[float]]) -> None:
    """The ratios of one period, and the bars of its usual setting."""
    for arm, row in ratios.items():
        report.rows.append(record.figure(f"H={period}, {arm}: loss / all-reduce, over the cells", row))
        report.rows.append(record.figure(f"H={period}, {arm}: at worst", [max(row)]))
    worst = {arm: max(row) for arm, row in ratios.items()}
    usual, published = Arm(*usual_outer("sgd", Period(period, "steps"))), Arm(*PUBLISHED)
    report.bar(f"H={period}: worst, usual / best of all", worst[usual] / min(worst.values()), at_most=FACTOR)
    report.bar(f"H={period}: worst, usual / published", worst[usual] / worst[published], at_most=1.0)


if __name__ == "__main__":
    raise SystemExit(main())
