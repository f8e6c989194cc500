"""What does a step cost in a script that is written for torch DDP, over the three lines of `quorate.distribute`?

    python benchmarks/taken_over.py [--quick] [--workers 2] [--strategy eager-solo]

Processes with one torch thread each train the same model in both ways, in blocks of steps, in turn (A B, B A, ...). A
figure is the ratio of two blocks that follow one another, the DDP script's over the three lines'. Under strategies that
do not wait, a block's CPU time varies by a tenth, so that there are 400 pairs: two minutes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import record
import workers

STEPS, DEPTH, WIDTH, BATCH = 40, 6, 128, 64
WAYS = ("three lines", "DDP script")


def worker(pairs: int, strategy: str) -> None:
    """One of the processes; rank 0 prints a line of JSON per pair: seconds and CPU seconds of a step, by way."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    torch.set_num_threads(1)
    world = quorate.join()
    x = torch.randn(BATCH, WIDTH)
    trainings: dict[str, tuple[Any, Any]] = {}
    for way in WAYS:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(
            *[layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        if way == "three lines":
            quorate.distribute(optimizer, model, strategy)
        else:
            model = DistributedDataParallel(model)
        trainings[way] = model, optimizer

    def block(way: str, count: int) -> tuple[float, float]:
        model, optimizer = trainings[way]
        world.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        world.barrier()
        return (time.perf_counter() - begin) / count, (time.process_time() - cpu) / count

    for way in WAYS:
        block(way, 5)
    for pair in range(pairs):
        order = WAYS if pair % 2 else WAYS[::-1]
        measured = {way: block(way, STEPS) for way in order}
        if world.is_first:
            print(json.dumps(measured), flush=True)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--pairs", type=int, default=400, help="of blocks (400)")
    parser.add_argument("--strategy", default="eager-solo", help="(eager-solo)")
    options = parser.parse_args()
    pairs = 30 if options.quick else options.pairs
    arguments = "--worker", str(pairs), options.strategy
    lines = workers.json_lines(
        str(Path(__file__).resolve()), options.workers, *arguments, options=("--strategy", options.strategy)
    )
    rows: list[dict[str, list[float]]] = [json.loads(line) for line in lines]
    settings = {"workers": options.workers, "strategy": options.strategy, "pairs": pairs, "steps": STEPS}
    report = record.Report("taken_over", settings)
    for number, (name, most) in enumerate((("wall time", 1.05), ("CPU time", 1.02))):
        ratios = [row["DDP script"][number] / row["three lines"][number] for row in rows]
        figure = record.figure(f"{name} of a step, DDP script / three lines", ratios)
        report.rows.append(figure)
        report.bar(f"{name} of a step", figure.median, at_most=most)
        if name == "wall time":
            report.bar("lower end of its interval", figure.low, at_most=1.0)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), sys.argv[3])
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
