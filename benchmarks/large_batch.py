"""Does accuracy hold when the batch grows, at the same number of examples?

`digits` (SGD with momentum) and `stdlib-functions` (AdamW) are trained at their usual batch, and at 8 and 32 times
that, with the rate as it is (unscaled), scaled linearly and by the square root, each of these with a gradual warm-up,
and with LARS and LAMB. All go through the same examples, with rates along a cosine (`quorate.schedule`). One process
makes the gradient of the whole batch: tests hold that workers, accumulation and one process make the same steps. Batch
norms have statistics of the usual batch (`quorate.ghost_batch_norm`), as those of workers have. Accuracies are of the
test set, in percent; a difference is that to the usual batch, of the same seed, and the median of the seeds counts.

Bars: with the recipe (SGD with linear scaling and warm-up for `digits`, LAMB for `stdlib-functions`) the 8x batch ends
within 0.5 points of the usual one; the unscaled run does not; 32x with LARS or LAMB, the better one, ends within 1
point. Rates of LARS and LAMB were found on seed 7. `--quick` trains `digits` alone, one seed; `--part NAME` trains one
workload. `stdlib-functions` takes about 40 minutes where a core is free for it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch
from torch import nn

import quorate
from quorate.core.workload import Workload, per_example, total
from quorate.optim import LAMB, LARS
from quorate.workloads import workloads

FACTORS = (8, 32)
SEEDS = (0, 1, 2)
WARM_UP = 0.15
"""Of all examples."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A workload, and what suits it."""

    name: str
    epochs: int
    settings: dict[str, Any]
    lars: float
    lamb: float
    """Base rates of these, for the usual batch."""
    recipe: str
    """The scaling that the first bar is of."""
    clip: float | None = None
    part: int = 256
    """Examples of a backward pass, of several that make a step; short sequences are padded to the longest of it."""


TASKS = (
    Task(name="digits", epochs=15, settings={}, lars=0.06, lamb=0.02, recipe="linear"),
    Task(
        name="stdlib-functions",
        epochs=10,
        settings={"longest": 100},
        lars=0.1,
        lamb=0.005,
        recipe="LAMB",
        clip=1.0,
        part=32,
    ),
)
ARMS = ("unscaled", "linear", "sqrt", "LARS", "LAMB")


def optimizer_of(task: Task, workload: Workload[Any], model: nn.Module, arm: str) -> torch.optim.Optimizer:
    """That of an arm, at the rate for the usual batch."""
    groups = quorate.parameter_groups(model, 1e-4)
    if arm == "LARS":
        return LARS(groups, lr=task.lars, coefficient=0.02)
    if arm == "LAMB":
        return LAMB(groups, lr=task.lamb)
    return workload.optimizer(model)


def accuracy(task: Task, arm: str, factor: int, seed: int) -> float:
    """On the test set, in percent, after a training at `factor` times the usual batch."""
    workload = workloads.get(task.name)(**task.settings)
    size = workload.batch_size * factor
    data = workload.dataset(train=True)
    model = workload.model(seed)
    if factor > 1 and any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        quorate.ghost_batch_norm(model, workload.batch_size)
    optimizer = optimizer_of(task, workload, model, arm)
    steps = max(1, task.epochs * len(data) // size)  # type: ignore[arg-type]
    scaling: Any = {"unscaled": "none", "linear": "linear", "sqrt": "sqrt"}.get(arm)
    scheduler = quorate.schedule(
        optimizer,
        steps * size,
        batch_size=workload.batch_size,
        accumulation=factor,
        scaling=scaling,
        warm_up="none" if arm == "unscaled" else "gradual",
        warm_up_examples=WARM_UP * steps * size,
    )
    draw = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(data), generator=draw) for _ in range(task.epochs + 1)])  # type: ignore[arg-type]
    for step in range(steps):
        members = order[step * size : (step + 1) * size].tolist()
        optimizer.zero_grad()
        for first in range(0, size, task.part):
            some = members[first : first + task.part]
            loss = workload.loss(model, workload.collate([data[number] for number in some]))
            (loss * len(some) / size).backward()
        if task.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        scheduler.step()
    tests = workload.dataset(train=False)
    examples = [tests[number] for number in range(len(tests))]  # type: ignore[arg-type]
    parts = [workload.collate(examples[first : first + 256]) for first in range(0, len(examples), 256)]
    model.eval()
    return 100 * per_example(total([workload.quality(model, part) for part in parts]))[workload.headline]


def measure(task: Task, seeds: tuple[int, ...], report: record.Report) -> None:
    """Train all arms, and hold the bars."""
    base = [accuracy(task, "unscaled", 1, seed) for seed in seeds]
    report.rows.append(record.figure(f"{task.name}, 1x", base))
    lost: dict[tuple[str, int], float] = {}
    for factor in FACTORS:
        for arm in ARMS:
            sys.stderr.write(f"{task.name}, {factor}x, {arm}\n")
            found = [accuracy(task, arm, factor, seed) for seed in seeds]
            report.rows.append(record.figure(f"{task.name}, {factor}x, {arm}", found))
            differences = record.figure("", [one - other for one, other in zip(base, found, strict=True)])
            lost[arm, factor] = differences.median
    hold(task, report, lost[task.recipe, 8], lost["unscaled", 8], min(lost["LARS", 32], lost["LAMB", 32]))


def hold(task: Task, report: record.Report, recipe: float | None, unscaled: float | None, layers: float | None) -> None:
    """The bars, of points lost; None where they were not measured."""
    report.bar(f"{task.name}: points lost at 8x, {task.recipe} and warm-up", recipe, at_most=0.5)
    report.bar(f"{task.name}: points lost at 8x, unscaled", unscaled, at_least=0.5)
    report.bar(f"{task.name}: points lost at 32x, LARS or LAMB", layers, at_most=1.0)


def main() -> int:
    parser = record.arguments("accuracy with large batches, at the same number of examples")
    parser.add_argument("--part", choices=[task.name for task in TASKS], help="only this workload")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    report = record.Report("large_batch", {"seeds": list(seeds), "tasks": [vars(task) for task in TASKS]})
    for task in TASKS:
        if arguments.part == task.name or (arguments.part is None and not (arguments.quick and task != TASKS[0])):
            measure(task, seeds, report)
        else:
            hold(task, report, None, None, None)
    return report.show(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
