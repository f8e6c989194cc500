"""How much memory does a worker hold under a strategy, against torch DDP?

    python benchmarks/memory.py [--quick] [--gib 0.25] [--steps 24] [--turns 3]
    python benchmarks/memory.py --strategies all --turns 1 --steps 12 [--momentum 0.9]

Two processes on this host train one parameter by SGD without momentum, in each way in processes of its own, in turn.
Each figure is the proportional share (Pss) of a worker, as the kernel counts it: a page that two processes map counts
half. It is what the training adds to a process that has joined, in units of the parameter, at the end of backward
passes and of steps, before `zero_grad`. `greatest` is the maximum over the steps after the third and over the workers,
`usual` the median. The difference is what late workers cost: results that they have not applied, and gradients that no
round has taken. A machine with other work makes workers late.

`vectors` are these figures without the parameters, the state of the optimizer, and what the process takes with its
first backward pass. `quorate doctor --memory` has a table of them (`quorate/sharding/memory.py`). Strategies that
exchange every so many steps do so every four.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

import record
import workers

TIMEOUT = 120.0
"""Seconds a wait lasts at most."""
ARMS = ("ddp", "all-reduce", "eager-solo", "eager-majority", "local-sgd")
OF_ONE_TENSOR = {"streaming-diloco": {"fragments": 1}}
"""Settings for a model of one parameter."""
OF_FEW_STEPS = {"sync_every": 4, "freeze": 4}
"""Settings with which strategies do within a few steps what they do later by default."""
WARM_UP = 3
MORE_WORKERS = frozenset(("detox", "draco", "gradient-coding"))
"""Strategies that give several workers the same batch."""
RUNNING = 1 << 25
"""Bytes that a process takes with its first backward pass, whatever the model."""
MOST = 1.35
"""At most, for the greatest share of every strategy over DDP's."""


def proportional_share() -> int:
    """Bytes of this process; a page counts by the number of processes that map it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def of_two_workers() -> list[str]:
    """Every strategy that two workers can train with."""
    from quorate.strategies import strategies

    return sorted(set(strategies.names()) - MORE_WORKERS)


def settings_of(arm: str) -> dict[str, int]:
    """The settings of a strategy here."""
    from dataclasses import fields

    from quorate.strategies import strategies

    names = {field.name for field in fields(strategies.get(arm))}
    return {name: value for name, value in OF_FEW_STEPS.items() if name in names} | OF_ONE_TENSOR.get(arm, {})


def kept_by_adam(arm: str) -> bool:
    """Whether a strategy is for Adam or LAMB only, which keep two vectors."""
    from quorate.strategies import strategies

    return arm in strategies and bool(strategies.get(arm).optimizers)


def worker(arm: str, gib: float, steps: int, momentum: float) -> None:
    """One of the processes; rank 0 prints the shares of all workers, after backward passes and after steps."""
    import torch
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(round(gib * 2**28)))

        def forward(self) -> Tensor:
            return (self.w * self.w).sum() * 1e-3

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)
    before = proportional_share()
    model: nn.Module = Squares()
    nbytes = sum(p.nbytes for p in model.parameters())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)
    if kept_by_adam(arm):
        optimizer = (quorate.optim.LAMB if "lamb" in arm else torch.optim.Adam)(model.parameters(), lr=1e-3)
    if arm == "ddp":
        model = DistributedDataParallel(model)
    else:
        quorate.distribute(optimizer, model, strategy=arm, **settings_of(arm))
    shares: dict[str, list[float]] = {"backward": [], "step": []}
    for _ in range(steps):
        model().backward()
        shares["backward"].append((proportional_share() - before) / nbytes)
        optimizer.step()
        shares["step"].append((proportional_share() - before) / nbytes)
        optimizer.zero_grad()
    if arm != "ddp":
        optimizer.finish()  # type: ignore[attr-defined]
    of_workers = world.gather(shares)
    if world.is_first:
        print(json.dumps(of_workers), flush=True)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--gib", type=float, default=0.25, help="size of the parameter (0.25)")
    parser.add_argument("--steps", type=int, default=24, help="of each way and turn (24)")
    parser.add_argument("--turns", type=int, default=3, help="of all ways (3)")
    parser.add_argument(
        "--strategies",
        nargs="+",
        default=list(ARMS[1:]),
        help='beside torch DDP (those of the bars); "all" of two workers',
    )
    parser.add_argument("--momentum", type=float, default=0.0, help="of SGD; the bars are without (0)")
    options = parser.parse_args()
    gib, steps, turns = (0.0625, 8, 1) if options.quick else (options.gib, options.steps, options.turns)

    from rich.progress import Progress

    arms = ["ddp", *(of_two_workers() if options.strategies == ["all"] else options.strategies)]
    report = record.Report("memory", {"workers": 2, "gib": gib, "steps": steps, "turns": turns, "threads": 1})
    measured: dict[str, list[list[dict[str, list[float]]]]] = defaultdict(list)
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(arms))
        for _ in range(turns):
            for arm in arms:
                script = str(Path(__file__).resolve())
                words = "--worker", arm, str(gib), str(steps), str(options.momentum)
                try:
                    measured[arm] += map(json.loads, workers.json_lines(script, 2, *words))
                except SystemExit as error:
                    print(error, file=sys.stderr)
                progress.update(task, advance=1, description=arm)
    greatest = {arm: add_rows(report, arm, of_turns) for arm, of_turns in measured.items()}
    figures = {row.name: row.median for row in report.rows}
    for arm in greatest:
        rest = 1 + (2 if kept_by_adam(arm) else options.momentum > 0) + RUNNING / (gib * 2**30)
        for kind in ("greatest", "usual"):
            share = max(figures[f"{arm}: after {moment}, {kind}"] for moment in ("backward", "step"))
            report.rows.append(record.figure(f"{arm}: vectors, {kind}", [share - rest]))
        if arm in ARMS[1:] and not options.momentum:
            report.bar(f"{arm}: greatest share / DDP's", greatest[arm] / greatest["ddp"], at_most=MOST)
    return report.show(options)


def add_rows(report: record.Report, arm: str, of_turns: list[list[dict[str, list[float]]]]) -> float:
    """Add the figures of one way, of each turn the worker with the most; return the median of the greatest shares."""
    every: list[float] = []
    for moment in ("backward", "step"):
        late = [[shares[moment][WARM_UP:] for shares in of_workers] for of_workers in of_turns]
        most = [max(max(shares) for shares in of_workers) for of_workers in late]
        usual = [max(median(shares) for shares in of_workers) for of_workers in late]
        report.rows.append(record.figure(f"{arm}: after {moment}, greatest", most))
        report.rows.append(record.figure(f"{arm}: after {moment}, usual", usual))
        every = most if not every else [max(pair) for pair in zip(every, most, strict=True)]
    return record.figure(arm, every).median


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        arm, gib, steps, momentum = sys.argv[2:6]
        worker(arm, float(gib), int(steps), float(momentum))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
