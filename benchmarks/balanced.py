"""Is `all-reduce` as fast as torch DDP where nobody is slow?

Two processes with one torch thread each train the same model both ways, in turn (A B, B A, ...), in the same processes.
The figure is the ratio of the two throughputs (ours / DDP), pair by pair. DDP does not broadcast buffers here
(`broadcast_buffers=False`), because ours does so only at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import record
import workers

WORKERS = 2
BATCH = 256


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


MODELS: dict[str, tuple[Callable[[], object], tuple[int, ...], int]] = {
    # name: (model, shape of a batch, steps a block)
    "mlp-5m": (lambda: mlp(1024, 4), (BATCH, 512), 10),
    "mlp-25m": (lambda: mlp(2048, 6), (BATCH, 512), 3),
    "convolutional": (convolutional, (32, 3, 32, 32), 30),
}


def worker(pairs: int, blocks: float) -> None:
    """One of the two processes; rank 0 prints one JSON line per pair."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    torch.set_num_threads(1)
    world = quorate.join()

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

    for name, (make, shape, steps) in MODELS.items():
        steps = max(1, round(steps * blocks))
        x = torch.randn(shape, generator=torch.Generator().manual_seed(world.rank))
        y = torch.randint(10, (shape[0],), generator=torch.Generator().manual_seed(world.rank))
        arms = []
        for ours in (False, True):
            torch.manual_seed(0)
            model: nn.Module = make()  # type: ignore[assignment]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            if ours:
                quorate.distribute(optimizer, model)
            arms.append((model if ours else DistributedDataParallel(model, broadcast_buffers=False), optimizer))

        for arm in (0, 1):
            block(*arms[arm], x, y, 3)
        size = sum(p.numel() for p in arms[1][0].parameters())
        for pair in range(pairs):
            seconds = [0.0, 0.0]
            for arm in ((0, 1), (1, 0))[pair % 2]:
                seconds[arm] = block(*arms[arm], x, y, steps)
            if world.is_first:
                row = {"model": name, "parameters": size, "pair": pair, "ddp": seconds[0], "ours": seconds[1]}
                print(json.dumps(row), flush=True)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=21, help="pairs of blocks for each model (21)")
    options = parser.parse_args()
    pairs, blocks = (5, 0.5) if options.quick else (options.pairs, 1.0)

    from rich.progress import Progress

    report = record.Report("balanced", {"workers": WORKERS, "batch": BATCH, "pairs": pairs, "threads": 1})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in MODELS}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("pairs", total=pairs * len(MODELS))
        for line in workers.json_lines(str(Path(__file__).resolve()), WORKERS, "--worker", str(pairs), str(blocks)):
            row = json.loads(line)
            found[row["model"]].append(row)
            progress.update(task, advance=1, description=row["model"])
    for name, rows in found.items():
        report.settings[name] = rows[0]["parameters"]
        report.rows.append(record.figure(f"{name}: seconds per step, DDP", [r["ddp"] for r in rows]))
        report.rows.append(record.figure(f"{name}: seconds per step, ours", [r["ours"] for r in rows]))
        ratio = record.figure(f"{name}: throughput, ours / DDP", [r["ddp"] / r["ours"] for r in rows])
        report.rows.append(ratio)
        report.bar(f"{name}: median ratio", ratio.median, at_least=0.97)
        report.bar(f"{name}: the 95% interval reaches", ratio.high, at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), float(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
