"""Are sums in shared memory as fast as gloo's among processes of one host?

Two, then four processes sum tensors of several sizes three ways, in turn (A B C, B C A, ...): with torch's gloo over
the loopback (`torch.distributed.all_reduce`), with ours from ordinary memory, and with ours from memory that the wire
gave, as gradients lie in. Gloo adds in an order of its own, ours in order of rank. The figure is the ratio of the times
(gloo / ours), turn by turn; every sum is waited for before the next one is called.
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
NUMELS = (1, 1_000, 16_000, 100_000, 1_000_000, 5_000_000)
"""Of float32."""
WAYS = ("gloo", "ordinary memory", "memory of the wire")
NUMBERS_A_TURN = 4_000_000
MOST_A_TURN = 200


def worker(turns: int, numels: list[int]) -> None:
    """One of the processes; rank 0 prints one JSON line per turn."""
    import torch
    import torch.distributed as dist

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=120)
    wire = world.wire.channel("benchmark")
    for numel in numels:
        count = max(3, min(MOST_A_TURN, NUMBERS_A_TURN // numel))
        tensors = {way: torch.zeros(numel) for way in WAYS}
        tensors[WAYS[2]] = wire.empty(numel, torch.float32).zero_()

        def block(way: str, tensors: dict[str, torch.Tensor], count: int) -> float:
            world.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                if way == "gloo":
                    dist.all_reduce(tensors[way])
                else:
                    wire.all_reduce(tensors[way]).wait()
            return (time.perf_counter() - begin) / count

        for way in WAYS:
            block(way, tensors, 3)
        for turn in range(turns):
            first = turn % len(WAYS)
            seconds = {way: block(way, tensors, count) for way in (*WAYS[first:], *WAYS[:first])}
            if world.is_first:
                print(json.dumps({"numel": numel, "seconds": seconds}), flush=True)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=15, help="of all ways, for each size (15)")
    options = parser.parse_args()
    turns, numels = (3, NUMELS[1::2]) if options.quick else (options.turns, NUMELS)

    from rich.progress import Progress

    report = record.Report("sums", {"workers": list(WORKERS), "turns": turns, "threads": 1})
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
                    ratio = record.figure(f"{name}: gloo / {way}", [r["gloo"] / r[way] for r in rows])
                    report.rows.append(ratio)
                    report.bar(f"{name}: median ratio, {way}", ratio.median, at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
