"""How fast are the algorithms of all-reduce over messages, beside the wire's own sums and torch's gloo?

Two, then four processes of one host sum tensors of several sizes in six ways, in turn (A B C, B C A, ...): with torch's
gloo over the loopback (`torch.distributed.all_reduce`), with the wire's own sums (`dense`, in shared memory), and with
each algorithm over messages from worker to worker, large ones of which lie in shared memory. The figures are
milliseconds and the ratio of times (gloo / ours), turn by turn; every sum is waited for before the next one is called.

Nothing is promised of these ratios: on one host sums in shared memory are what is used, and the algorithms are there
for networks. On fewer cores than processes they also take turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import record
import workers

WORKERS = (2, 4)
NUMELS = (1, 1_000, 100_000, 1_000_000, 5_000_000)
"""Of float32."""
GLOO = "gloo"
WAYS = (GLOO, "dense", "ring", "recursive-doubling", "halving-doubling", "tree")
NUMBERS_A_TURN = 2_000_000
MOST_A_TURN = 50


def worker(turns: int, numels: list[int]) -> None:
    """One of the processes; rank 0 prints one JSON line per turn."""
    import torch
    import torch.distributed as dist

    import quorate
    from quorate.core.vectors import Layout, Part
    from quorate.reducers import reducers

    torch.set_num_threads(1)
    world = quorate.join(timeout=120)
    wire = world.wire.channel("benchmark")
    for numel in numels:
        count = max(3, min(MOST_A_TURN, NUMBERS_A_TURN // numel))
        layout = Layout((), (Part(numel, torch.float32, torch.device("cpu")),), 0)
        sums = {way: reducers.get(way)(layout, wire.channel(f"{way} {numel}")) for way in WAYS if way != GLOO}
        x = wire.empty(numel, torch.float32).zero_()

        def block(way: str, x: torch.Tensor, count: int, sums: dict = sums) -> float:  # type: ignore[type-arg]
            world.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                if way == GLOO:
                    dist.all_reduce(x)
                else:
                    sums[way].again(0, x).wait()
            return (time.perf_counter() - begin) / count

        for way in WAYS:
            block(way, x, 3)
        for turn in range(turns):
            first = turn % len(WAYS)
            seconds = {way: block(way, x, count) for way in (*WAYS[first:], *WAYS[:first])}
            if world.is_first:
                print(json.dumps({"numel": numel, "seconds": seconds}), flush=True)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=12, help="of all ways, for each size (12)")
    options = parser.parse_args()
    turns, numels = (3, NUMELS[1::2]) if options.quick else (options.turns, NUMELS)

    from rich.progress import Progress

    report = record.Report("all_reduce_algorithms", {"workers": list(WORKERS), "turns": turns, "threads": 1})
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(numels) * len(WORKERS))
        for size in WORKERS:
            found: dict[int, list[dict[str, float]]] = {numel: [] for numel in numels}
            script = str(Path(__file__).resolve())
            for line in workers.json_lines(script, size, "--worker", str(turns), json.dumps(numels)):
                row = json.loads(line)
                found[row["numel"]].append(row["seconds"])
                progress.update(task, advance=1, description=f"{size} workers, {row['numel']} numbers")
            for numel, rows in found.items():
                name = f"{size} workers, {numel} numbers"
                for way in WAYS:
                    report.rows.append(record.figure(f"{name}: ms, {way}", [1e3 * r[way] for r in rows]))
                for way in WAYS[1:]:
                    report.rows.append(record.figure(f"{name}: gloo / {way}", [r[GLOO] / r[way] for r in rows]))
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
