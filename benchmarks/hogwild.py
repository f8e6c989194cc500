"""Do two processes update shared parameters faster without locks than under one?

Two workers under `hogwild` take plain SGD steps on parameters in memory that they have in common, four ways in turn (A
B C D, B C D A, ...): without locks; with one lock of both around each update (`optimizer.step()`); with one lock around
the gradient and its update, so that no gradient is of parameters that have moved since; and one worker alone, while
the other one waits. The lock is of the system (`flock`). Both problems are convex: in the sparse one an example touches
20 of 100,000 rows, and its gradient is sparse; in the dense one a step reads and writes all 20,000 numbers. Each turn
begins at zero. The figures are updates a second of both together, their ratios turn by turn, and the loss that as many
updates have come to.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent))

FREE, LOCKED, SERIAL, ALONE = "without locks", "a lock around the update", "a lock around all", "one worker alone"
WAYS = (FREE, LOCKED, SERIAL, ALONE)
PROBLEMS = ("sparse", "dense")
WORKERS, BATCH = 2, 16
ROWS, TOUCHED = 100_000, 20
INPUTS, CLASSES = 2_000, 10
EXAMPLES = 4_096


def worker(turns: int, updates: int) -> None:
    """One of the processes: rank 0 prints a line of JSON for every turn."""
    import torch

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=120)
    with open(Path(os.environ["QUORATE_RUN"], "lock"), "w") as lock:
        for problem in PROBLEMS:
            model, loss_of, rate = (sparse if problem == "sparse" else dense)()
            plain = torch.optim.SGD(model.parameters(), lr=rate)
            optimizer: Any = quorate.distribute(plain, model, "hogwild", name=problem)
            draw = torch.Generator().manual_seed(world.rank)
            for turn in range(-1, turns):  # the first one warms up
                for place in range(len(WAYS)):
                    way = WAYS[(place + turn) % len(WAYS)]
                    count = updates if way != ALONE else updates * WORKERS * world.is_first
                    batches = torch.randint(0, EXAMPLES, (count, BATCH), generator=draw)
                    seconds, loss = timed(world, model, partial(train, optimizer, loss_of, batches, way, lock), loss_of)
                    if world.is_first and turn >= 0:
                        told = {"problem": problem, "way": way, "rate": updates * WORKERS / seconds, "loss": loss}
                        print(json.dumps(told), flush=True)
            optimizer.finish()


def timed(world: Any, model: Any, trains: Callable[[], None], loss_of: Callable[[Any], Any]) -> tuple[float, float]:
    """Seconds until the last worker has trained, from parameters that are zero; and the loss that they come to."""
    import torch

    with world.evaluate(), torch.no_grad():
        for p in model.parameters():
            p.zero_()
    world.barrier()
    begin = time.perf_counter()
    trains()
    seconds = max(world.gather(time.perf_counter() - begin))
    with world.evaluate(), torch.no_grad():
        return seconds, float(loss_of(torch.arange(EXAMPLES)))


def train(optimizer: Any, loss_of: Callable[[Any], Any], batches: Any, way: str, lock: IO[str]) -> None:
    """An update for each of `batches`."""
    for batch in batches:
        with locked(lock) if way == SERIAL else nullcontext():
            optimizer.zero_grad()
            loss_of(batch).backward()
            with locked(lock) if way == LOCKED else nullcontext():
                optimizer.step()


@contextmanager
def locked(lock: IO[str]) -> Iterator[None]:
    """Inside, nobody else is."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def sparse() -> tuple[Any, Callable[[Any], Any], float]:
    """Logistic regression on a few of many rows."""
    import torch
    from torch import nn

    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, ROWS, (EXAMPLES, TOUCHED), generator=draw)
    labels = (torch.randn(ROWS, generator=draw)[rows].sum(1) > 0).float()
    model = nn.EmbeddingBag(ROWS, 1, mode="sum", sparse=True)

    def loss_of(which: Any) -> Any:
        return nn.functional.binary_cross_entropy_with_logits(model(rows[which])[:, 0], labels[which])

    return model, loss_of, 1.0


def dense() -> tuple[Any, Callable[[Any], Any], float]:
    """Multinomial logistic regression on all of the inputs."""
    import torch
    from torch import nn

    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=draw) / INPUTS**0.5
    labels = (inputs @ torch.randn(INPUTS, CLASSES, generator=draw)).argmax(1)
    model = nn.Linear(INPUTS, CLASSES, bias=False)
    return model, lambda which: nn.functional.cross_entropy(model(inputs[which]), labels[which]), 5.0


def main() -> int:
    import record
    from workers import json_lines

    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=15, help="of every way (15)")
    parser.add_argument("--updates", type=int, default=1_000, help="of each worker in a turn (1000)")
    options = parser.parse_args()
    turns, updates = (3, 300) if options.quick else (options.turns, options.updates)
    settings = {"workers": WORKERS, "batch": BATCH, "turns": turns, "updates of each worker in a turn": updates}
    report = record.Report("hogwild", settings)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for line in json_lines(str(Path(__file__).resolve()), WORKERS, "--worker", str(turns), str(updates)):
        one = json.loads(line)
        print(f"{one['problem']:7s} {one['way']:26s} {one['rate']:9.0f} updates/s  loss {one['loss']:.4f}", flush=True)
        for what in ("rate", "loss"):
            found[one["problem"], one["way"], what].append(one[what])
    for problem in PROBLEMS:
        free = found[problem, FREE, "rate"]
        for way in WAYS:
            rates = found[problem, way, "rate"]
            report.rows.append(record.figure(f"{problem}: {way}, updates/s", rates))
            report.rows.append(record.figure(f"{problem}: {way}, loss", found[problem, way, "loss"]))
        for way in WAYS[1:]:
            ratios = [mine / other for mine, other in zip(free, found[problem, way, "rate"], strict=True)]
            report.rows.append(record.figure(f"{problem}: {FREE} / {way}", ratios))
            if way == LOCKED:
                bar = f"{problem}: updates/s without locks over a lock around the update"
                report.bar(bar, record.median_of(ratios), at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
