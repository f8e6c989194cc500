"""Does a table of a million rows, of which a step touches 0.1 %, cost by the rows that were touched?

Two workers train one embedding and a linear layer with plain SGD in seven ways that take turns (A B C D E F G, B C D E
F G A, ...). Gradients are sparse under all-reduce, a quorum of all, the default quorum (which outlives deaths),
parameter servers, by rows over the workers (`quorate.parallelize`), and torch DDP over gloo; they are dense under
all-reduce. In each step a worker touches 1,000 rows that are
drawn for it. The figures are the time of a step, and the bytes that both workers send in it, over those of the indices
(4 bytes) and numbers of the rows that they have touched. A server sends the rows of all workers to each, so that its
ratio is 1.5: one worker pushes, and the server of the other answers with the rows of both.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

ROWS, WIDTH, TOUCHED = 1_000_000, 16, 1_000
SPARSE, QUORUM, DENSE, DDP = "sparse", "quorum, sparse", "dense", "DDP, sparse"
OUTLIVING, SERVERS, BY_ROWS = "default quorum, sparse", "servers, sparse", "by rows, sparse"
WAYS = (SPARSE, QUORUM, OUTLIVING, SERVERS, BY_ROWS, DENSE, DDP)
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    SPARSE: ("all-reduce", {}),
    QUORUM: ("quorum", {"wait_for": "all", "on_death": "stop"}),
    OUTLIVING: ("quorum", {}),
    SERVERS: ("parameter-server", {}),
    BY_ROWS: ("all-reduce", {}),
    DENSE: ("all-reduce", {}),
}
"""Strategies and their settings."""
STEPS = {name: 4 if name == DENSE else 40 for name in WAYS}
"""Steps in a turn."""


def worker(turns: int) -> None:
    """Train as one of the workers; rank 0 prints a line of JSON for each turn."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=300)
    generator = torch.Generator().manual_seed(world.rank)

    class Way:
        def __init__(self, name: str) -> None:
            torch.manual_seed(0)
            model: nn.Module = nn.Sequential(nn.Embedding(ROWS, WIDTH, sparse=name != DENSE), nn.Linear(WIDTH, 1))
            self.meter: Any = None
            if name == BY_ROWS:
                quorate.parallelize(model)
            self.optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
            if name == DDP:
                model = nn.parallel.DistributedDataParallel(model)
            else:
                strategy, settings = OURS[name]
                self.optimizer = quorate.distribute(
                    self.optimizer, model, strategy, compare_every=0, name=name, **settings
                )
                self.meter = self.optimizer.__dict__["_quorate_worker"].timer._meter
            self.model, self.count = model, STEPS[name]

        def turn(self) -> tuple[float, float]:
            """Return the seconds of a step, and the bytes of both workers over those of the touched rows."""
            needed, before = 0, self.bytes_out
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(self.count):
                rows = torch.randint(ROWS, (TOUCHED,), generator=generator)
                needed += len(rows.unique()) * (4 + 4 * WIDTH)
                self.optimizer.zero_grad()
                self.model(rows).square().mean().backward()
                self.optimizer.step()
            seconds = (time.perf_counter() - begin) / self.count
            totals = torch.tensor([self.bytes_out - before, needed], dtype=torch.float64)
            dist.all_reduce(totals)
            return seconds, float(totals[0] / totals[1])

        @property
        def bytes_out(self) -> int:
            return 0 if self.meter is None else sum(self.meter.bytes_out.values())

    ways = {name: Way(name) for name in WAYS}
    for way in ways.values():
        way.turn()
    for number in range(turns):
        first = number % len(WAYS)
        figures = {name: ways[name].turn() for name in (*WAYS[first:], *WAYS[:first])}
        if world.is_first:
            print(json.dumps(figures), flush=True)
    for name in OURS:
        ways[name].optimizer.finish()


def main() -> int:
    """Run the workers, and report."""
    import record
    import workers

    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=15, help="of all ways (15)")
    options = parser.parse_args()
    turns = 3 if options.quick else options.turns
    about = {"rows": ROWS, "width": WIDTH, "touched": TOUCHED, "turns": turns, "workers": 2, "threads": 1}
    report = record.Report("sparse_table", about)
    lines = [json.loads(line) for line in workers.json_lines(str(Path(__file__).resolve()), 2, "--worker", str(turns))]
    for name in WAYS:
        report.rows.append(record.figure(f"ms a step, {name}", [1e3 * line[name][0] for line in lines]))
    for name in OURS:
        report.rows.append(record.figure(f"bytes sent / of rows touched, {name}", [line[name][1] for line in lines]))
    for name in (QUORUM, OUTLIVING, SERVERS, BY_ROWS, DENSE, DDP):
        ratio = record.figure(f"step, {SPARSE} / {name}", [line[SPARSE][0] / line[name][0] for line in lines])
        report.rows.append(ratio)
        if name == DENSE:
            report.bar("median step, sparse / dense", ratio.median, at_most=0.1)
    nbytes = record.median_of([line[SPARSE][1] for line in lines])
    report.bar("median bytes sent / bytes of rows touched", nbytes, at_most=1.1)
    nbytes = record.median_of([line[SERVERS][1] for line in lines])
    report.bar("median bytes sent / bytes of rows touched, servers", nbytes, at_most=1.65)
    nbytes = record.median_of([line[BY_ROWS][1] for line in lines])
    report.bar("median bytes sent / bytes of rows touched, by rows", nbytes, at_most=1.1)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]))
    else:
        sys.exit(main())
