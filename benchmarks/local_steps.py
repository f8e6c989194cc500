"""What do local steps cost in quality, and what do they spare?

- quality: DiLoCo (H = 500) on `stdlib-bytes`, 4 workers, after 10 % of synchronous steps, against torch DDP at equal
  data, in real processes: the ratio of the final losses, and how many times fewer exchanges there are after the
  synchronous part.
- imbalance: the regression of `light_imbalance.py`, 8 real processes, one random worker late by 300 ms in every step:
  gradients per second of every strategy of local steps over DDP's, and the time to the same training loss.

`--part` measures one of them only; `slow_link.py` and `wait_avoiding.py` go on with links and with many workers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import DDP, Runs, Setting, Side, in_milliseconds

from quorate.compare.grid import SCRIPT
from quorate.report.quality import final_quality
from quorate.report.reading import RunRecords

WORKERS = 4
BATCH = 2
LENGTH = 64
WINDOWS = 169_859
"""Of the workload at that length, in Python 3.11.7; another count only changes how many steps are made."""
LATE, PACE, RATE = 0.3, 0.28, 3.0
"""As in `light_imbalance.py`."""
LOSSES = (8.0, 4.7)
"""Of training, to which times are told; the second is the published final one."""
PARTS = ("quality", "imbalance")

SMALL = {"width": 64, "layers": 1, "heads": 4, "length": 32, "test_windows": 64}
"""Settings of the workload with --quick."""


def text(steps: int, *, is_small: bool) -> list[str]:
    """Arguments of the script for so many steps of every worker."""
    windows = WINDOWS * (2 if is_small else 1)
    epochs = steps * BATCH * WORKERS / windows
    settings = json.dumps(SMALL if is_small else {"length": LENGTH})
    work = ["--batch", str(BATCH), "--epochs", repr(epochs), "--evaluations", "1"]
    return ["stdlib-bytes", "--settings", settings, *work]


def exchanges(run: RunRecords, after: int) -> int:
    """Steps of rank 0 behind `after` in which it sent something: the last one is the end's."""
    return sum(step.bytes_out > 0 for step in run.ranks[0].steps if step.step > after)


def quality(runs: Runs, report: record.Report, repeats: int, steps: int, period: int, *, is_small: bool) -> None:
    """Final loss and number of exchanges, real processes."""
    arguments = text(steps, is_small=is_small)
    warm_up = steps // 10
    outer = Side(name="diloco", strategy="diloco", settings={"sync_every": period, "after": warm_up})
    setting = Setting(workers=WORKERS, steps=steps, batch=BATCH)
    losses: dict[str, list[float]] = {}
    fewer: list[float] = []
    for seed in range(repeats):
        found = {}
        for side in (DDP, outer) if seed % 2 == 0 else (outer, DDP):
            run = found[side.name] = runs.script(str(SCRIPT), arguments, side, setting, seed)
            loss = final_quality(run, "bits_per_byte")
            losses.setdefault(side.name, []).append(float("inf") if loss is None else loss)
        fewer.append(exchanges(found["ddp"], warm_up) / max(1, exchanges(found["diloco"], warm_up)))
    report.rows += [record.figure(f"final bits per byte, {name}", values) for name, values in losses.items()]
    ratios = [ours / theirs for ours, theirs in zip(losses["diloco"], losses["ddp"], strict=True)]
    report.rows.append(record.figure(f"final loss, diloco / ddp, H={period}, {steps} steps", ratios))
    report.rows.append(record.figure(f"exchanges after the warm-up, ddp / diloco, H={period}", fewer))
    is_published = period == 500
    report.bar("final loss, diloco / ddp, H=500", record.median_of(ratios) if is_published else None, at_most=1.02)
    # The turn and the end are exchanges as well, so the ratio comes to 500 in long trainings only.
    per_period = [ratio / period for ratio in fewer]
    report.bar("exchanges, ddp / diloco / H", record.median_of(per_period), at_least=0.5)


def late_sides() -> list[Side]:
    """Every strategy of local steps, at periods that fit the regression's few hundred steps."""
    return [
        Side(name="local-sgd", strategy="local-sgd", settings={"sync_every": 8}),
        Side(name="local-sgd, by time", strategy="local-sgd", settings={"sync_every": "3s"}),
        Side(name="slowmo", strategy="slowmo", settings={"sync_every": 8, "slow_every": 1, "beta": 0.2}),
        Side(name="diloco", strategy="diloco", settings={"sync_every": 8}),
        Side(name="eager-averaging", strategy="eager-averaging", settings={"sync_every": 4}),
        Side(name="group-averaging", strategy="group-averaging"),
    ]


def imbalance(runs: Runs, report: record.Report, repeats: int, steps: int, sides: list[Side]) -> None:
    """Gradients per second and time to the loss, 8 real processes."""
    late = Setting(
        workers=8,
        steps=steps,
        pace=in_milliseconds(PACE),
        imbalance=f"one-of:{in_milliseconds(LATE)}",
        learning_rate_factor=RATE,
    )
    if steps < 100:
        late = replace(late, batch=32, workload={"points": 4096, "features": 1024})
    rates: dict[str, list[float]] = {}
    times: dict[tuple[str, float], list[float | None]] = {}
    losses: dict[str, list[float]] = {}
    for seed in range(repeats):
        order = [DDP, *sides]
        for side in order[seed % len(order) :] + order[: seed % len(order)]:
            run = runs.train(side, late, seed)
            rates.setdefault(side.name, []).append(readings.gradients_per_second(run, late.batch))
            for loss in LOSSES:
                times.setdefault((side.name, loss), []).append(readings.seconds_to(loss, run))
            losses.setdefault(side.name, []).append(readings.final_loss(run))
    for side in [DDP, *sides]:
        name = f"late by 300 ms: final loss, {side.name}"
        report.rows.append(record.figure(name, losses[side.name]))
        if side is not DDP:
            ratios = [ours / ddp for ours, ddp in zip(rates[side.name], rates["ddp"], strict=True)]
            report.rows.append(record.figure(f"late by 300 ms: gradients per second, {side.name} / ddp", ratios))
        for loss in LOSSES:
            reached = [one for one in times[side.name, loss] if one is not None]
            if len(reached) == repeats:
                name = f"late by 300 ms: seconds to a loss of {loss:g}, {side.name}"
                report.rows.append(record.figure(name, reached))


def main() -> int:
    parser = record.arguments(__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="measure this only")
    parser.add_argument("--steps", type=int, default=5000, help="of the text, every worker (5000)")
    parser.add_argument("--sync-every", type=int, default=500, help="H of DiLoCo (500)")
    parser.add_argument("--late-steps", type=int, default=250, help="of the regression (250)")
    parser.add_argument("--repeats", type=int, default=1, help="seeds (1)")
    options = parser.parse_args()
    steps, period, late, repeats = options.steps, options.sync_every, options.late_steps, options.repeats
    if options.quick:
        steps, period, late, repeats = 12, 4, 16, 1
    parts = PARTS if options.part is None else (options.part,)
    sides = [late_sides()[0], late_sides()[-1]] if options.quick else late_sides()
    settings = {"steps": steps, "sync_every": period, "late_steps": late, "repeats": repeats, "parts": list(parts)}
    report = record.Report("local_steps", settings)
    with Runs(repeats * (2 * ("quality" in parts) + (len(sides) + 1) * ("imbalance" in parts))) as runs:
        if "quality" in parts:
            quality(runs, report, repeats, steps, period, is_small=options.quick)
        if "imbalance" in parts:
            imbalance(runs, report, repeats, late, sides)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
