"""What does it cost to start: bytes, memory and CPU time of `quorate.distribute` and the first step, by workers?

    python benchmarks/start.py [--quick] [--turns 5] [--sizes 2 8]

Every worker is a program of its own on this host, and none is forked from another. Rank 0's replica is copied to all
others by `distribute`. Figures of one worker: CPU time (user and system) and wall time of `distribute`, which begins at
a barrier, and the peak of its resident memory (VmHWM) at its end. Further the bytes that rank 0 writes, in messages and
into memory that it shares with others. Without `--turns` every arm is measured once: bytes and memory hardly vary. The
bar of bytes allows a thousandth more, for the descriptions that rank 0 sends to each worker.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import record

TIMEOUT = 300.0
"""Seconds a wait lasts at most."""
WIDTH = 1000
"""Of the layers, each with a million weights: parts of a model lie in tensors of a few megabytes."""
LEAST, MOST = 25, 100
"""Million parameters: where time is measured, and where memory is."""
COUNTS = ("in messages", "in shared memory")


def counted(counts: Counter[str]) -> None:
    """Count from now on the bytes of tensors that this process writes, in `counts`."""
    from quorate.wire import exchange
    from quorate.wire.real import mailbox

    encode, copy = mailbox.encode, exchange.CollectivesByMessages._from_one_copy

    def encoded(*given: Any, **named: Any) -> list[memoryview]:
        head, *tensors = encode(*given, **named)
        counts["in messages"] += sum(map(len, tensors))
        return [head, *tensors]

    def copied(self: Any, x: Any, header: Any) -> Any:
        counts["in shared memory"] += x.nbytes
        return copy(self, x, header)

    mailbox.encode, exchange.CollectivesByMessages._from_one_copy = encoded, copied  # type: ignore[assignment, method-assign]


def peak_bytes() -> int:
    """The peak of the resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def worker(millions: int) -> None:
    """One of the workers; it prints its figures as a line of JSON."""
    import torch
    from torch import nn

    import quorate

    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    counted(counts)
    world = quorate.join(timeout=TIMEOUT, records=False)
    torch.manual_seed(world.rank)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(millions)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    world.barrier()
    before = counts.copy()
    wall, processor = time.perf_counter(), time.process_time()
    quorate.distribute(optimizer, model)
    figures: dict[str, float] = {
        "wall": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
        "peak": peak_bytes(),
        **{name: counts[name] - before[name] for name in COUNTS},
    }
    before = counts.copy()
    if millions == LEAST:
        model(torch.ones(1, WIDTH)).square().mean().backward()
        optimizer.step()
    figures |= {f"step {name}": counts[name] - before[name] for name in COUNTS}
    print(json.dumps(figures), flush=True)
    world.barrier()
    optimizer.finish()  # type: ignore[attr-defined]


def started(size: int, millions: int) -> list[dict[str, float]]:
    """The figures of `size` workers, by rank."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(millions)]
        usual = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
        workers = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **usual, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        said = [one.communicate(timeout=2 * TIMEOUT)[0] for one in workers]
    if any(one.returncode for one in workers):
        raise SystemExit("a worker failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=1, help="of both sizes, one after the other")
    parser.add_argument("--sizes", type=int, nargs=2, default=[2, 8], help="numbers of workers")
    options = parser.parse_args()
    few, many = options.sizes
    report = record.Report("start", {"sizes": options.sizes, "turns": options.turns, "millions": [LEAST, MOST]})
    of: dict[int, list[list[dict[str, float]]]] = {few: [], many: []}
    for _ in range(options.turns):
        for size in of:
            of[size].append(started(size, LEAST))
    for size, turns in of.items():
        for name, figure in (("CPU", "processor"), ("wall", "wall")):
            values = [max(each[figure] for each in workers) for workers in turns]
            report.rows.append(record.figure(f"{size} workers, {LEAST} M: {name} seconds, busiest", values))
        for figure in [*COUNTS, *(f"step {name}" for name in COUNTS)]:
            values = [workers[0][figure] / 1e6 for workers in turns]
            report.rows.append(record.figure(f"{size} workers, {LEAST} M: MB of rank 0, {figure}", values))

    def ratio(figure: str) -> float:
        ratios = [
            max(each[figure] for each in more) / max(each[figure] for each in fewer)
            for fewer, more in zip(of[few], of[many], strict=True)
        ]
        return record.median_of(ratios) or 0.0

    first, last = None, None
    if not options.quick:
        peaks = [each["peak"] / 1e6 for each in started(many, MOST)]
        first, last = peaks[0], peaks[-1]
        for rank, peak in ((0, first), (many - 1, last)):
            report.rows.append(record.figure(f"{many} workers, {MOST} M: MB of rank {rank} at its peak", [peak]))
    is_measured = first is not None and last is not None
    report.bar("peak memory, first rank / last", first / last if is_measured else None, at_most=1.2)  # type: ignore[operator]
    report.bar(f"CPU of the busiest, {many} workers / {few}", ratio("processor"), at_most=1.5)
    report.bar(f"wall time, {many} workers / {few}", ratio("wall"), at_most=4.5)
    written = {size: sum(turns[0][0][name] for name in COUNTS) for size, turns in of.items()}
    report.bar(f"bytes that rank 0 writes, {many} workers / {few}", written[many] / written[few], at_most=1.001)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]))
    else:
        sys.exit(main())
