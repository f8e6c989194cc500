"""SparseLoCo beside DiLoCo with dense ways: bytes, and the loss on held-out examples.

Published (Sarfi et al., 2025, arXiv 2508.15706, after its abstract): with 1 to 3 % of the numbers in two bits it is
better than DiLoCo with dense ways and outer momentum. Here four virtual workers train two small models with AdamW for
450 steps, with a mean every 15 and every 50 steps: `sparse-loco` as it is, with twice as many numbers, with an error
that does not fade, and without error feedback; `diloco` with momentum (0.9 at a rate of
0.7, as published, and 0.5 at a rate of 1), and with its ways in 4 bits; `local-sgd`; and `all-reduce`. The rate of the
inner optimizer is the best of three for `all-reduce`, and the same for all.

Told are the held-out loss in the end of each seed, the ratio of this to that of DiLoCo in the same seed, and bytes that
a worker sends, over those of a dense way in each period. Nothing here is timed; the same seeds give the same figures.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch
from codec_trainings import Way, numbers_of, trained
from torch.optim import AdamW

STEPS, PERIODS, RATES, TASKS = 450, (15, 50), (1e-3, 3e-3, 1e-2), ("digits", "text")
DILOCO, SPARSE, ALL_REDUCE = "diloco", "sparse-loco", Way(name="all-reduce")


def ways(period: int) -> list[Way]:
    """All that have a mean every `period` steps."""
    half = {"outer_rate": 1.0, "outer_momentum": 0.5}
    told: dict[str, tuple[str, dict[str, Any]]] = {
        DILOCO: ("diloco", {"outer_rate": 0.7, "outer_momentum": 0.9}),
        "diloco, momentum 0.5": ("diloco", half),
        "diloco, momentum 0.5, 4 bits": ("diloco", {**half, "compress": "blocks", "bits": 4}),
        SPARSE: ("sparse-loco", {}),
        "sparse-loco, keep=128": ("sparse-loco", {"keep": 128}),
        "sparse-loco, error_decay=1": ("sparse-loco", {"error_decay": 1.0}),
        "sparse-loco, no error feedback": ("sparse-loco", {"error_feedback": False, "error_decay": 1.0}),
        "local-sgd": ("local-sgd", {}),
    }
    return [Way(name=n, strategy=s, settings={"sync_every": period, **given}) for n, (s, given) in told.items()]


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3, help="of every training (3)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of every worker ({STEPS})")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps, seeds = (60, 1) if options.quick else (options.steps, options.seeds)
    tasks, periods = (TASKS[:1], PERIODS[:1]) if options.quick else (TASKS, PERIODS)
    about = {"workers": 4, "steps": steps, "periods": list(periods), "seeds": seeds, "tasks": list(tasks)}
    report = record.Report("sparse_loco", about)
    for task in tasks:

        def end_of(way: Way, rate: float, seed: int, task: str = task) -> tuple[float, float]:
            told = trained(task, way, rate, seed, steps, every=steps, optimizer=AdamW)
            return told.losses[-1][1], told.nbytes * steps

        tried = {rate: end_of(ALL_REDUCE, rate, 0)[0] for rate in (RATES[1:2] if options.quick else RATES)}
        rate = min(tried, key=lambda rate: tried[rate])
        together = [tried[rate], *(end_of(ALL_REDUCE, rate, seed)[0] for seed in range(1, seeds))]
        report.rows.append(record.figure(f"{task}, all-reduce: loss", together))
        for period in periods:
            dense = 4.0 * numbers_of(task) * (steps // period)
            found = {way.name: [end_of(way, rate, seed) for seed in range(seeds)] for way in ways(period)}
            base = [loss for loss, _ in found[DILOCO]]
            for name, ends in found.items():
                losses, at = [loss for loss, _ in ends], f"{task}, H = {period}, {name}"
                sent = statistics.fmean(nbytes for _, nbytes in ends) / dense
                report.rows.append(record.figure(f"{at}: loss", losses))
                report.rows.append(
                    record.figure(f"{at}: loss / diloco's", [a / b for a, b in zip(losses, base, strict=True)])
                )
                report.rows.append(record.figure(f"{at}: sent, in dense ways", [sent]))
                said = f"rate {rate:g}, losses {[f'{x:.4f}' for x in losses]}, sent {sent:.4g}"
                print(f"{at}: {said}", file=sys.stderr, flush=True)
            ratio = statistics.median(a / b for (a, _), b in zip(found[SPARSE], base, strict=True))
            is_whole = not options.quick
            report.bar(f"{task}, H = {period}: loss, sparse-loco / diloco", ratio if is_whole else None, at_most=1.0)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
