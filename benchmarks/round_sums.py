"""How much sooner is a round of a quorum over when workers add its vectors by pieces?

    python benchmarks/round_sums.py [--quick] [--turns 15] [--pinned]

Two, then four processes with one torch thread each train one parameter of several sizes under a quorum of all. In turn
(A B C, B C A, ...) the leader adds all vectors alone in one thread, it does so in two threads, and all workers add
pieces, in one thread each. With `--pinned` each worker keeps to one core, as srun and taskset have it.

A round is timed from the last worker's call, when its gradient is packed, until the last worker has the sum, and until
it has the mean, which is a copy of the sum that its optimizer may change. The figure is the ratio to the first way,
turn by turn. CPU time is that of all processes in the step.
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

WORKERS = (2, 4)
NUMELS = (250_000, 1_000_000, 4_000_000, 25_000_000)
"""Of float32."""
ALONE, THREADS, PIECES = WAYS = "the leader alone", "two threads of the leader", "by pieces"
NEVER = 1 << 60
ENDS = ("ms to the sum", "ms to the mean", "CPU ms of the step")
ROUNDS = 4
"""In each turn of a way, the median of which counts."""
BAR = 0.6
"""At most, for 25 million numbers of four workers."""


class Times:
    """The moments of one round in this process: the call, and the arrival of the sum and of the mean."""

    def __init__(self) -> None:
        from quorate.quorums.rounds import WorkerRounds
        from quorate.rounds.rounds import Rounds

        self.called = self.has_sum = self.has_mean = 0.0
        call, mean_of = Rounds._call, WorkerRounds._mean_of

        def called(rounds: Any, **about: Any) -> Any:
            self.called = time.monotonic()
            return call(rounds, **about)

        def mean(rounds: Any, round_: Any) -> Any:
            self.has_sum = time.monotonic()
            result = mean_of(rounds, round_)
            self.has_mean = time.monotonic()
            return result

        Rounds._call, WorkerRounds._mean_of = called, mean  # type: ignore[method-assign]


class Ways:
    """The ways in which the leader of this process may form its sums."""

    def __init__(self) -> None:
        from quorate.rounds import piecewise_sums
        from quorate.rounds.leader import Leader

        self._module, self._leader = piecewise_sums, Leader
        self._waiting, self._add = Leader._waiting, piecewise_sums.PiecewiseSums._add

    def choose(self, way: str) -> None:
        """Form the next sums in this way."""

        def add(sums: Any, *about: Any) -> None:
            sums._threads = 2 if way == THREADS else 1
            self._add(sums, *about)

        self._module.LEAST_BYTES = NEVER if way == ALONE else 0
        self._module.PiecewiseSums._add = add  # type: ignore[method-assign]
        self._leader._waiting = self._waiting if way == PIECES else lambda *_: []  # type: ignore[method-assign]


def worker(turns: int, numels: list[int], is_pinned: bool) -> None:
    """One of the processes; rank 0 prints a JSON line per size and turn: by way, ms to the sum, to the mean, and CPU
    ms."""
    import torch

    import quorate

    torch.set_num_threads(1)
    world, times, ways = quorate.join(timeout=120), Times(), Ways()
    if is_pinned:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
    for numel in numels:
        x = torch.nn.Parameter(torch.zeros(numel))
        module = torch.nn.Module()
        module.x = x
        optimizer = torch.optim.SGD([x], lr=1e-4)
        settings: dict[str, Any] = {"wait_for": "all", "grace": 5.0, "compare_every": 0}
        quorate.distribute(optimizer, module, strategy="quorum", **settings)

        def one_round(x: Any = x, optimizer: Any = optimizer) -> list[float]:
            x.grad = torch.ones_like(x)
            world.barrier()
            cpu = time.process_time()
            optimizer.step()
            cpu = time.process_time() - cpu
            ends = world.gather([times.called, times.has_sum, times.has_mean, cpu])
            begin = max(end[0] for end in ends)
            sum_, mean = (1e3 * (max(end[place] for end in ends) - begin) for place in (1, 2))
            return [sum_, mean, 1e3 * sum(end[3] for end in ends)]

        for turn in range(-1, turns):
            measured, begin = {}, turn % len(WAYS)
            for way in (*WAYS[begin:], *WAYS[:begin]):
                ways.choose(way)
                figures = zip(*(one_round() for _ in range(ROUNDS)), strict=True)
                measured[way] = [sorted(figure)[ROUNDS // 2 - 1] for figure in figures]
            if world.is_first and turn >= 0:
                print(json.dumps({"numel": numel, "measured": measured}), flush=True)
        optimizer.finish()


def main() -> int:
    """Start the processes, and report."""
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=15, help="of all ways, for each size (15)")
    parser.add_argument("--pinned", action="store_true", help="keep each worker to one core")
    options = parser.parse_args()
    sizes, numels, turns = (WORKERS, NUMELS, options.turns) if not options.quick else ((4,), NUMELS[-1:], 5)

    from rich.progress import Progress

    report = record.Report(
        "round_sums", {"workers": sizes, "turns": turns, "rounds a turn": ROUNDS, "pinned": options.pinned}
    )
    ratio: dict[str, float] = {}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(sizes) * len(numels))
        for size in sizes:
            rows: dict[int, list[dict[str, list[float]]]] = {numel: [] for numel in numels}
            for line in workers.json_lines(
                str(Path(__file__).resolve()), size, "--worker", str(turns), json.dumps(numels), str(options.pinned)
            ):
                row = json.loads(line)
                rows[row["numel"]].append(row["measured"])
                progress.update(task, advance=1, description=f"{size} workers, {row['numel']} numbers")
            for numel, measured in rows.items():
                for place, end in enumerate(ENDS):
                    name = f"{size} workers, {numel} numbers: {end}"
                    for way in WAYS:
                        report.rows.append(record.figure(f"{name}, {way}", [row[way][place] for row in measured]))
                    for way in WAYS[1:]:
                        ratios = [row[way][place] / row[ALONE][place] for row in measured]
                        report.rows.append(figure := record.figure(f"{name}, {way} / alone", ratios))
                    if (size, numel) == (4, NUMELS[-1]):
                        ratio[end] = figure.median
    for end in ENDS[:2]:
        report.bar(f"4 workers, {NUMELS[-1]} numbers: {end}, {PIECES} / alone", ratio.get(end), at_most=BAR)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), json.loads(sys.argv[3]), is_pinned=sys.argv[4] == "True")
    else:
        sys.exit(main())
