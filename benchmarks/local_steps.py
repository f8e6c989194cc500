"""What do local steps cost in quality, and what do they spare?

- quality: DiLoCo (H = 500) on `stdlib-bytes`, after 10 % of synchronous steps, against torch DDP at equal data (sixteen
  windows a step, however many workers share them), in real processes: the ratio of the final losses with two workers
  (and, with --many, with four), and how many times fewer exchanges there are after the synchronous part. On all sides
  the learning rate is `RATE` times the workload's, and falls along a cosine. The outer step is
  `OUTER`; --published measures that of the paper (rate 0.7, momentum 0.9) as well.
- imbalance: the regression of `light_imbalance.py`, 8 real processes, one random worker late by 300 ms in every step:
  gradients per second of every strategy of local steps over DDP's, and the time to the same training loss, each side at
  a learning rate (and with an outer step) that suits it: found among virtual workers and in shorter runs.

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
from quorate.report.reading.run import RunRecords
from quorate.report.topics.quality import final_quality

WORKERS = (2, 4)
OF_A_STEP = 16
"""Windows of a step, of all workers."""
LENGTH = 64
MODEL = {"length": LENGTH, "layers": 2}
"""Settings of the workload: a million parameters."""
RATE = 2.0
"""Times the workload's learning rate."""
OUTER = {"outer_rate": 1.0, "outer_momentum": 0.6}
"""Of DiLoCo, where there are some thirty outer steps."""
LIMIT = 3600.0
"""Seconds that a run may take."""
WINDOWS = 169_859
"""Of the workload at that length, in Python 3.11.7; another count only changes how many steps are made."""
LATE, PACE = 0.3, 0.28
"""As in `light_imbalance.py`."""
DDP_RATE = 6.0
"""Times the workload's learning rate, at which synchronous SGD is fastest in `light_imbalance.py`'s grid."""
LOSSES = (8.0, 4.7)
"""Of training, to which times are told; the second is the published final one."""
PARTS = ("quality", "imbalance")

SMALL = {"width": 64, "layers": 1, "heads": 4, "length": 32, "test_windows": 64}
"""Settings of the workload with --quick."""


def text(steps: int, workers: int, *, is_small: bool) -> list[str]:
    """Arguments of the script for so many steps of every worker."""
    windows = WINDOWS * (2 if is_small else 1)
    epochs = steps * OF_A_STEP / windows
    settings = json.dumps(SMALL if is_small else MODEL)
    work = ["--batch", str(OF_A_STEP // workers), "--epochs", repr(epochs), "--evaluations", "1", "--falls"]
    return ["stdlib-bytes", "--settings", settings, *work]


def exchanges(run: RunRecords, after: int) -> int:
    """Steps of rank 0 behind `after` in which it sent something: the last one is the end's."""
    return sum(step.bytes_out > 0 for step in run.ranks[0].steps if step.step > after)


def sides_of_text(period: int, warm_up: int, *, has_many: bool, has_published: bool) -> list[tuple[Side, int]]:
    """And how many workers each has."""
    few, many = WORKERS
    common = {"sync_every": period, "after": warm_up}
    sides = [(DDP, few)]
    for workers in (few, many) if has_many else (few,):
        sides.append(
            (Side(name=f"diloco, {workers} workers", strategy="diloco", settings={**common, **OUTER}), workers)
        )
    if has_published:
        sides.append((Side(name="diloco, outer step as published", strategy="diloco", settings=common), few))
    return sides


def quality(
    runs: Runs, report: record.Report, repeats: int, steps: int, period: int, sides: list[tuple[Side, int]]
) -> None:
    """Final loss and number of exchanges, real processes."""
    warm_up, is_published = steps // 10, period == 500
    losses: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    for seed in range(repeats):
        for side, workers in sides:
            batch = OF_A_STEP // workers
            setting = Setting(workers=workers, steps=steps, batch=batch, learning_rate_factor=RATE)
            run = runs.script(str(SCRIPT), text(steps, workers, is_small=not is_published), side, setting, seed)
            loss = final_quality(run, "bits_per_byte")
            losses.setdefault(side.name, []).append(float("inf") if loss is None else loss)
            counts.setdefault(side.name, []).append(exchanges(run, warm_up))
            sys.stderr.write(f"  {side.name}: {losses[side.name][-1]:.4f} bits per byte\n")
    report.rows += [record.figure(f"final bits per byte, {name}", values) for name, values in losses.items()]
    for side, workers in sides[1:]:
        ratios = [ours / theirs for ours, theirs in zip(losses[side.name], losses["ddp"], strict=True)]
        report.rows.append(record.figure(f"final loss, {side.name} / ddp, H={period}, {steps} steps", ratios))
        if side.settings.items() >= OUTER.items():
            name = f"final loss, diloco / ddp, H=500, {workers} workers"
            report.bar(name, record.median_of(ratios) if is_published else None, at_most=1.02)
    ours = counts[sides[1][0].name]
    fewer = [ddp / max(1, outer) for ddp, outer in zip(counts["ddp"], ours, strict=True)]
    report.rows.append(record.figure(f"exchanges after the warm-up, ddp / diloco, H={period}", fewer))
    # The turn and the end are exchanges as well, so the ratio comes to 500 in long trainings only.
    per_period = [ratio / period for ratio in fewer]
    report.bar("exchanges, ddp / diloco / H", record.median_of(per_period), at_least=0.5)


def late_sides() -> list[tuple[Side, float]]:
    """Every strategy of local steps, at periods that fit the regression's few hundred steps, and its learning rate."""
    slow = {"sync_every": 8, "slow_every": 1, "beta": 0.5}
    outer = {"sync_every": 8, "outer_rate": 1.0, "outer_momentum": 0.5}
    return [
        (Side(name="local-sgd", strategy="local-sgd", settings={"sync_every": 8}), 3.0),
        (Side(name="local-sgd, by time", strategy="local-sgd", settings={"sync_every": "3s"}), 3.0),
        (Side(name="slowmo", strategy="slowmo", settings=slow), 2.0),
        (Side(name="diloco", strategy="diloco", settings=outer), 2.0),
        (Side(name="eager-averaging", strategy="eager-averaging", settings={"sync_every": 4}), 3.0),
        (Side(name="group-averaging", strategy="group-averaging"), 5.0),
    ]


def imbalance(runs: Runs, report: record.Report, repeats: int, steps: int, sides: list[tuple[Side, float]]) -> None:
    """Gradients per second and time to the loss, 8 real processes."""
    late = Setting(
        workers=8,
        steps=steps,
        pace=in_milliseconds(PACE),
        imbalance=f"one-of:{in_milliseconds(LATE)}",
    )
    if steps < 100:
        late = replace(late, batch=32, workload={"points": 4096, "features": 1024})
    rates: dict[str, list[float]] = {}
    times: dict[tuple[str, float], list[float | None]] = {}
    losses: dict[str, list[float]] = {}
    for seed in range(repeats):
        order = [(DDP, DDP_RATE), *sides]
        for side, factor in order[seed % len(order) :] + order[: seed % len(order)]:
            run = runs.train(side, replace(late, learning_rate_factor=factor), seed)
            rates.setdefault(side.name, []).append(readings.gradients_per_second(run, late.batch))
            for loss in LOSSES:
                times.setdefault((side.name, loss), []).append(readings.seconds_to(loss, run))
            losses.setdefault(side.name, []).append(readings.final_loss(run))
    for side, _ in [(DDP, DDP_RATE), *sides]:
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
    parser.add_argument("--steps", type=int, default=16_000, help="of the text, every worker (16000)")
    parser.add_argument("--many", action="store_true", help="measure DiLoCo with four workers as well")
    parser.add_argument("--published", action="store_true", help="measure DiLoCo's published outer step as well")
    parser.add_argument("--sync-every", type=int, default=500, help="H of DiLoCo (500)")
    parser.add_argument("--late-steps", type=int, default=150, help="of the regression (150)")
    parser.add_argument("--repeats", type=int, default=1, help="seeds (1)")
    options = parser.parse_args()
    steps, period, late, repeats = options.steps, options.sync_every, options.late_steps, options.repeats
    if options.quick:
        steps, period, late, repeats = 12, 4, 16, 1
    parts = PARTS if options.part is None else (options.part,)
    sides = [late_sides()[0], late_sides()[-1]] if options.quick else late_sides()
    settings = {"steps": steps, "sync_every": period, "late_steps": late, "repeats": repeats, "parts": list(parts)}
    report = record.Report("local_steps", settings)
    of_text = sides_of_text(period, steps // 10, has_many=options.many, has_published=options.published)
    counts = {"quality": len(of_text), "imbalance": len(sides) + 1}
    with Runs(repeats * sum(counts[part] for part in parts), LIMIT) as runs:
        if "quality" in parts:
            quality(runs, report, repeats, steps, period, of_text)
        if "imbalance" in parts:
            imbalance(runs, report, repeats, late, sides)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
