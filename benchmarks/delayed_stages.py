"""How much faster is a pipeline whose gradients are one batch old than 1F1B, and what does it hold?

    python benchmarks/delayed_stages.py [--quick] [--turns 5]

Both schedules in turn (A B, B A, ...), in processes of one torch thread:

- `decoder`: the decoder of `model_parallel.py` (6.4 million parameters, AdamW) on two workers, one for each core, with
  2, 4 and 8 micro-batches;
- `slept`: eight layers on four workers, whose passes sleep (10 ms forward, 20 ms backward) in place of computing, as
  there are fewer cores than workers, with 4, 8 and 16 micro-batches.

Figures are seconds a step under 1F1B over those of `pipedream-2bw`, the same ratio by formula, of m micro-batches and p
workers (3 m + 3 (p - 1)) / (3 m + p - 1), and live MiB of the worker that holds most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import model_parallel  # noqa: E402
import record  # noqa: E402
from sharded import Peak, live  # noqa: E402

from tests.support.processes import run_real_world  # noqa: E402

SCHEDULES = ("1f1b", "pipedream-2bw")
FORWARD, BACKWARD = 0.01, 0.02
"""Seconds that a pass of a layer sleeps."""
WORTH = 0.95
"""Of the ratio by formula."""
CASES = {"decoder": (2, (2, 4, 8)), "slept": (4, (4, 8, 16))}
"""Workers, and numbers of micro-batches."""
WIDTH = 16


def sleeping() -> Any:
    """Layers that sleep in place of computing."""
    import torch
    from torch import nn

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(FORWARD)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
            time.sleep(BACKWARD)
            return gradient

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return Sleep.apply(self.inner(x))

    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(8)))


def train(case: str, schedule: Any, microbatches: int, steps: int, world: Any) -> dict[str, float]:
    """One worker's part: the median seconds of a step, and the bytes that it holds at most."""
    import torch

    import quorate

    torch.set_num_threads(1)
    before = live()
    model, examples = (model_parallel.network(), 8) if case == "decoder" else (sleeping(), 16)
    model = quorate.parallelize(model, world.mesh(stages=world.size), schedule=schedule, microbatches=microbatches)
    optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-4), model)
    draw = torch.Generator().manual_seed(1)
    if case == "decoder":
        ids = torch.randint(0, model_parallel.TOKENS, (examples, model_parallel.LENGTH + 1), generator=draw)
        x, y, loss_of = ids[:, :-1], ids[:, 1:], model_parallel.loss_of
    else:
        x, y, loss_of = torch.randn(examples, WIDTH, generator=draw), torch.zeros(examples, WIDTH), torch.nn.MSELoss()
    seconds, peak = list[float](), None
    for step in range(steps + 4):
        if step == steps + 2:
            peak = Peak()  # which takes time
        begin = time.monotonic()
        optimizer.zero_grad()
        quorate.forward_backward(model, x, y, loss_of)
        optimizer.step()
        seconds.append(time.monotonic() - begin)
    assert peak is not None
    peak.end()
    optimizer.finish()
    timed = sorted(seconds[2 : steps + 2])
    return {"seconds": timed[len(timed) // 2], "peak": float(peak.live - before)}


def measure(report: record.Report, case: str, turns: int, steps: int, counts: tuple[int, ...]) -> None:
    workers = CASES[case][0]
    for microbatches in counts:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEDULES}
        for turn in range(turns):
            for name in SCHEDULES[:: 1 if turn % 2 == 0 else -1]:
                task: Callable[[Any], Any] = partial(train, case, name, microbatches, steps)
                every = run_real_world(workers, task, 120.0, environment={"OMP_NUM_THREADS": "1"})
                found[name].append({key: max(worker[key] for worker in every) for key in every[0]})
        where = f"{case}, {workers} workers, {microbatches} micro-batches"
        for name, runs in found.items():
            report.rows.append(record.figure(f"{where}, {name}: ms a step", [1e3 * run["seconds"] for run in runs]))
            report.rows.append(record.figure(f"{where}, {name}: MiB", [run["peak"] / 2**20 for run in runs]))
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(*found.values(), strict=True)]
        report.rows.append(record.figure(f"{where}: 1f1b / pipedream-2bw, seconds", ratios))
        formula = (3 * microbatches + 3 * (workers - 1)) / (3 * microbatches + workers - 1)
        report.bar(f"{where}: that over the formula's {formula:.3f}", report.rows[-1].median / formula, at_least=WORTH)
        print(f"{where}: {report.rows[-1].median:.3f} of {formula:.3f}", flush=True)


def main() -> int:
    parser = record.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="of both schedules (5)")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    arguments = parser.parse_args()
    turns, steps = (1, 5) if arguments.quick else (arguments.turns, 20)
    report = record.Report("delayed_stages", {"turns": turns, "steps": steps})
    for case in arguments.cases:
        counts = CASES[case][1]
        measure(report, case, turns, steps, counts[1:2] if arguments.quick else counts)
    return report.show(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
