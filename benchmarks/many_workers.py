"""Is the leader of rounds the limit where there are many workers on a host, and does a quorum start as fast as it runs?

    python benchmarks/many_workers.py [--quick] [--sizes 4 16 64] [--picture FILE]

Many workers: `Linear(10, 10)` on 4 to 64 processes of this host, which sleep between steps so that the cores are not
all busy with their own steps. The figure is the number of contributions that rounds take in per second (rounds per
second times workers), and its ratio to that of the fewest workers. The barriers between blocks are not in it.

First second: two workers of 40 small layers that are timed from their first step on; the figure is the number of steps
in the first second over that in the fifth, and torch DDP's beside it.
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

TIMEOUT = 300.0
"""Seconds a wait lasts at most."""
ARMS: dict[str, dict[str, Any] | None] = {
    "quorum": {"strategy": "quorum", "wait_for": "all"},
    "eager-majority": {"strategy": "eager-majority"},
    "all-reduce": {"strategy": "all-reduce"},
    "plain": None,
}
"""The choices of each arm; None: each worker trains alone, which is what processes of a host cost each other."""
STARTS = ("ddp", "eager-solo", "all-reduce")
SLEEP = 0.0004
"""Seconds of sleep before a step, times the number of workers: with 64 of them a worker sleeps 26 ms in each step."""
STEPS = 1600
"""Steps of all workers in a block."""
LAYERS, WIDTH, BATCH = 40, 32, 64
SECONDS = 5.5


def sleeping(turns: int, share: float) -> None:
    """One of many workers; rank 0 prints a JSON line per turn: steps of all workers per second, by arm."""
    import torch

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)
    size = int(os.environ["WORLD_SIZE"])
    x, arms = torch.randn(8, 10), {}
    for arm, chosen in ARMS.items():
        model = torch.nn.Linear(10, 10)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4)
        if chosen is not None:
            quorate.distribute(optimizer, model, **chosen)
        arms[arm] = model, optimizer

    def block(arm: str, count: int) -> float:
        model, optimizer = arms[arm]
        world.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            time.sleep(SLEEP * size)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return sum(world.gather(count / (time.perf_counter() - begin)))

    for arm in arms:
        block(arm, 5)
    for _ in range(turns):
        measured = {arm: block(arm, max(10, round(share * STEPS / size))) for arm in arms}
        if world.is_first:
            print(json.dumps(measured), flush=True)
    for arm, (_, optimizer) in arms.items():
        if ARMS[arm] is not None:
            optimizer.finish()


def starting(arm: str) -> None:
    """One of two workers; rank 0 prints the number of its steps in each second since the first step began."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    plain = nn.Sequential(*layers)
    optimizer: Any = torch.optim.SGD(plain.parameters(), lr=1e-4, momentum=0.9)
    model: nn.Module = plain
    if arm == "ddp":
        model = DistributedDataParallel(plain)
    else:
        quorate.distribute(optimizer, plain, strategy=arm)
    x, ends = torch.randn(BATCH, WIDTH), []
    world.barrier()
    begin = now = time.perf_counter()
    is_over = False
    while not is_over:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        ends.append(now - begin)
        is_over = now >= begin + SECONDS
        if arm != "eager-solo":  # all end after the same step
            is_over = len(ends) % 8 == 0 and world.any(is_over)
    if arm != "ddp":
        optimizer.finish()
    if world.is_first:
        print(json.dumps([sum(second <= end < second + 1 for end in ends) for second in range(5)]), flush=True)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 16, 64], help="numbers of workers (4 16 64)")
    parser.add_argument("--turns", type=int, default=5, help="of all strategies, at each size; and starts (5)")
    parser.add_argument("--picture", type=Path, help="draw the contributions per second into this SVG file")
    options = parser.parse_args()
    turns, share = (2, 0.3) if options.quick else (options.turns, 1.0)
    sizes = [4, 16] if options.quick else options.sizes

    from rich.progress import Progress

    report = record.Report("many_workers", {"sizes": sizes, "turns": turns, "sleep": SLEEP})
    script, rates = str(Path(__file__).resolve()), {}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("workers", total=len(sizes) + turns * len(STARTS))
        for size in sizes:
            lines = workers.json_lines(script, size, "--sleeping", str(turns), str(share))
            rates[size] = [json.loads(line) for line in lines]
            progress.update(task, advance=1, description=f"{size} workers")
        seconds: dict[str, list[list[int]]] = {arm: [] for arm in STARTS}
        for _ in range(turns):
            for arm in STARTS:
                seconds[arm] += [json.loads(line) for line in workers.json_lines(script, 2, "--starting", arm)]
                progress.update(task, advance=1, description=f"start of {arm}")
    least, most = min(sizes), max(sizes)
    for arm in ARMS:
        for size in sizes:
            values = [row[arm] for row in rates[size]]
            report.rows.append(record.figure(f"{arm}, {size} workers: contributions per second", values))
        ratio = record.median_of([row[arm] for row in rates[most]]) or 0.0
        ratio /= record.median_of([row[arm] for row in rates[least]]) or 1.0
        limit = {"at_least": 2 / 3} if arm in ("quorum", "eager-majority") else {}
        if limit:
            report.bar(f"{arm}: {most} workers / {least} workers", ratio, **limit)
    for arm, counts in seconds.items():
        report.rows.append(record.figure(f"{arm}: steps in the first second", [each[0] for each in counts]))
        report.rows.append(
            record.figure(f"{arm}: first second / fifth", [each[0] / max(1, each[4]) for each in counts])
        )
    ratios = [each[0] / max(1, each[4]) for each in seconds["eager-solo"]]
    report.bar("eager-solo: first second / fifth", record.median_of(ratios), at_least=0.9)
    if options.picture is not None:
        draw(options.picture, rates)
    return report.show(options)


def draw(path: Path, rates: dict[int, list[dict[str, float]]]) -> None:
    """Draw contributions per second over the number of workers."""
    from chart_style import chart_style

    from quorate.report.charts.lines import Axes, Line, line_chart
    from quorate.report.charts.markup import Markup, element

    lines = [
        Line(
            name=arm,
            look=look,
            curves=[[(size, record.median_of([row[arm] for row in rows]) or 0.0) for size, rows in rates.items()]],
            is_of_runs=False,
        )
        for look, arm in enumerate(ARMS)
    ]
    axes = Axes(x="workers on one host of 2 cores", x_kind="count", y="contributions per second")
    chart = line_chart(lines, axes, width=760, height=320, label="Contributions per second by number of workers")
    style = element("style", Markup(chart_style()))
    head, _, inside = str(chart).partition(">")
    path.write_text(f'{head} xmlns="http://www.w3.org/2000/svg">{style}{inside}\n', encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sleeping"]:
        sleeping(int(sys.argv[2]), float(sys.argv[3]))
    elif sys.argv[1:2] == ["--starting"]:
        starting(sys.argv[2])
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
