"""Are `all-reduce`, and `quorum` that waits for all or for one, as fast as torch DDP where nobody is slow?

Two processes with one torch thread each train the same model all ways, in turn (A B C D, B C D A, ...), in the same
processes. The figure is the ratio of the throughputs (ours / DDP), turn by turn. DDP does not broadcast buffers here
(`broadcast_buffers=False`), because ours does so only at the end. The quorums train the MLPs only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import record
import workers

WORKERS = 2
BATCH = 256
TIMEOUT = 120.0
"""Seconds a wait lasts at most."""


def mlp(width: int, depth: int):  # type: ignore[no-untyped-def]
    from torch import nn

    layers: list[nn.Module] = [nn.Linear(512, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolutional():  # type: ignore[no-untyped-def]
    from torch import nn

    def block(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    layers = [*block(3, 16, 1), *block(16, 32, 2), *block(32, 32, 1), *block(32, 64, 2), *block(64, 64, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "all-reduce": ("all-reduce", {}),
    "quorum of all": ("quorum", {"wait_for": "all"}),
    "quorum of one": ("quorum", {"wait_for": 1}),
}
MODELS: dict[str, tuple[Callable[[], object], tuple[int, ...], int, tuple[str, ...]]] = {
    # name: (model, shape of a batch, steps a block, what is held against DDP)
    "mlp-5m": (lambda: mlp(1024, 4), (BATCH, 512), 10, tuple(STRATEGIES)),
    "mlp-25m": (lambda: mlp(2048, 6), (BATCH, 512), 3, tuple(STRATEGIES)),
    "convolutional": (convolutional, (32, 3, 32, 32), 30, ("all-reduce",)),
}


def worker(turns: int, blocks: float) -> None:
    """One of the two processes; rank 0 prints one JSON line per turn."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)

    def block(
        model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, count: int
    ) -> float:
        world.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        world.barrier()
        return (time.perf_counter() - begin) / count

    for name, (make, shape, steps, held) in MODELS.items():
        steps = max(1, round(steps * blocks))
        x = torch.randn(shape, generator=torch.Generator().manual_seed(world.rank))
        y = torch.randint(10, (shape[0],), generator=torch.Generator().manual_seed(world.rank))
        arms = {}
        for arm in ("ddp", *held):
            torch.manual_seed(0)
            model: nn.Module = make()  # type: ignore[assignment]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            if arm != "ddp":
                strategy, settings = STRATEGIES[arm]
                quorate.distribute(optimizer, model, strategy=strategy, **settings)
            arms[arm] = (
                DistributedDataParallel(model, broadcast_buffers=False) if arm == "ddp" else model,
                optimizer,
            )

        size = sum(p.numel() for p in model.parameters())
        quorums = {arm: optimizer for arm, (_, optimizer) in arms.items() if arm.startswith("quorum")}
        for arm in arms:
            block(*arms[arm], x, y, 2)
        names = list(arms)
        for turn in range(turns):
            first = turn % len(names)
            seconds = {arm: block(*arms[arm], x, y, steps) for arm in [*names[first:], *names[:first]]}
            left = {arm: pending(optimizer) for arm, optimizer in quorums.items()}
            row = {"model": name, "parameters": size, "turn": turn, "seconds": seconds, "pending": left}
            if world.is_first:
                print(json.dumps(row), flush=True)


def pending(optimizer: object) -> float:
    """Gradients of this worker that no round has taken in yet."""
    rounds = optimizer.__dict__["_quorate_worker"].rounds.rounds
    with rounds._progress.lock:
        return float(rounds._member.pending.weight)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=21, help="of all ways, for each model (21)")
    options = parser.parse_args()
    turns, blocks = (2, 0.5) if options.quick else (options.turns, 1.0)

    from rich.progress import Progress

    report = record.Report("balanced", {"workers": WORKERS, "batch": BATCH, "turns": turns, "threads": 1})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in MODELS}
    left: dict[str, dict[str, float]] = {}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(MODELS))
        for line in workers.json_lines(str(Path(__file__).resolve()), WORKERS, "--worker", str(turns), str(blocks)):
            row = json.loads(line)
            found[row["model"]].append(row["seconds"])
            left[row["model"]] = row["pending"]
            report.settings[row["model"]] = row["parameters"]
            progress.update(task, advance=1, description=row["model"])
    for name, rows in found.items():
        report.rows.append(record.figure(f"{name}: seconds per step, DDP", [r["ddp"] for r in rows]))
        for arm in MODELS[name][3]:
            report.rows.append(record.figure(f"{name}: seconds per step, {arm}", [r[arm] for r in rows]))
            ratio = record.figure(f"{name}: throughput, {arm} / DDP", [r["ddp"] / r[arm] for r in rows])
            report.rows.append(ratio)
            report.bar(f"{name}: median ratio, {arm}", ratio.median, at_least=0.97)
            if arm in left[name]:  # rounds without gradients would be fast
                report.bar(f"{name}: gradients pending at the end, {arm}", left[name][arm], at_most=2.0)
            if arm == "all-reduce":
                report.bar(f"{name}: the 95% interval reaches, {arm}", ratio.high, at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), float(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
