"""The same training under plain torch DDP and under Quorate's all-reduce, on four workers of this machine.

    python examples/demo.py

Both ways start from the same parameters and see the same batches in the same order; what differs is the order in which
four numbers are added, which AdamW makes visible after some hundred steps. What you see live is rank 0; the table at
the end is over all workers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ARMS = ("torch DDP", "all-reduce")


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def train(arm: str, options: argparse.Namespace) -> None:
    """Train one way; rank 0 says how it goes."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import quorate
    from quorate.workloads import workloads

    world = quorate.join()
    workload = workloads.get("stdlib-functions")(limit=options.limit or None)
    model = workload.model(seed=0)
    optimizer = workload.optimizer(model)
    if arm == "torch DDP":
        call = DistributedDataParallel(model)
    else:
        call, optimizer = model, quorate.distribute(optimizer, model, strategy="all-reduce")
    loader = quorate.shard(workload.dataset(train=True), options.batch, collate_fn=workload.collate)
    held_out = quorate.shard(workload.dataset(train=False), options.batch, collate_fn=workload.collate, shuffle=False)
    world.barrier()
    begin, rounds, recent = time.perf_counter(), 0, 0.0
    for epoch in range(options.epochs):
        for batch in loader:
            loss = workload.loss(call, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            rounds += 1
            recent = loss.item() if rounds == 1 else 0.95 * recent + 0.05 * loss.item()
            if world.is_first:
                seconds = time.perf_counter() - begin
                say(
                    arm=arm,
                    epoch=epoch + 1,
                    round=rounds,
                    of=options.epochs * len(loader),
                    loss=recent,
                    seconds=seconds,
                )
    world.barrier()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        counts = [workload.quality(model, batch) for batch in held_out]
    examples = sum(count["examples"] for count in counts)
    quality = {name: sum(count[name] for count in counts) / examples for name in ("top1", "top5")}
    means = {name: world.mean(value, weight=examples) for name, value in quality.items()}
    loss_mean = world.mean(recent)
    if arm != "torch DDP":
        optimizer.finish()
    if world.is_first:
        say(
            end=arm,
            rounds=rounds,
            seconds=seconds,
            loss=loss_mean,
            examples=rounds * options.batch * world.size,
            **means,
        )


def work(options: argparse.Namespace) -> None:
    """One of the workers."""
    for arm in ARMS:
        train(arm, options)


def _lines(run: subprocess.Popen[str]) -> Iterator[str]:
    """What the workers say; they end with us."""
    assert run.stdout is not None
    try:
        yield from run.stdout
    except BaseException:
        run.terminate()
        raise


def show(options: argparse.Namespace) -> int:
    """Start the workers and show what rank 0 says."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    console = Console()
    words = [sys.executable, "-m", "quorate.cli.main", "run", "-n", str(options.workers), str(Path(__file__).resolve())]
    words += ["--work", "--epochs", str(options.epochs), "--batch", str(options.batch), "--limit", str(options.limit)]
    columns = (
        TextColumn("{task.description:10s}"),
        BarColumn(),
        TextColumn(f"epoch {{task.fields[epoch]}}/{options.epochs}"),
        TextColumn("{task.fields[speed]:5.2f} rounds/s"),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    table = Table(
        title=f"stdlib-functions, {options.workers} workers, {options.epochs} epoch(s), batch {options.batch} each"
    )
    for column in ("", "rounds/s", "examples/s", "seconds", "loss", "top-1", "top-5"):
        table.add_column(column, justify="left" if not column else "right")
    from quorate.workloads import workloads

    console.print("Reading the functions of Python's own standard library (the first time takes about 20 seconds).")
    console.print("\n".join(workloads.get("stdlib-functions")(limit=options.limit or None).describe()), highlight=False)
    console.print(f"Starting {options.workers} workers.")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run, Progress(*columns, console=console) as bars:
        tasks = {}
        for line in _lines(run):
            if not line.startswith("{"):
                bars.print(line.rstrip())
                continue
            said = json.loads(line)
            if "arm" in said:
                if said["arm"] not in tasks:
                    tasks[said["arm"]] = bars.add_task(said["arm"], total=said["of"], epoch=0, speed=0.0, loss=0.0)
                speed = said["round"] / said["seconds"]
                bars.update(
                    tasks[said["arm"]], completed=said["round"], epoch=said["epoch"], speed=speed, loss=said["loss"]
                )
                if not console.is_terminal and said["round"] % 20 == 0:
                    console.print(
                        f"{said['arm']}: round {said['round']}/{said['of']}, epoch {said['epoch']}, "
                        f"{speed:.2f} rounds/s, loss {said['loss']:.3f}"
                    )
            elif "end" in said:
                table.add_row(
                    said["end"],
                    f"{said['rounds'] / said['seconds']:.2f}",
                    f"{said['examples'] / said['seconds']:.0f}",
                    f"{said['seconds']:.1f}",
                    f"{said['loss']:.3f}",
                    f"{said['top1']:.3f}",
                    f"{said['top5']:.3f}",
                )
    if run.returncode:
        return run.returncode
    console.print(table)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="examples per worker and round")
    parser.add_argument("--limit", type=int, default=0, help="functions to use; 0 takes all")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        return show(options)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
