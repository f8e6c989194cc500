"""Do adapters lose quality where workers meet only every 16 steps, after both sides are tuned?

A transformer of 10.9 million parameters is trained on bytes of Python code in this process. Then its base is frozen,
and adapters of rank 8 beside all layers of its blocks are trained on the same code with the case of its letters
swapped, by four virtual workers: `all-reduce` over a grid of learning rates, and `diloco` with H = 16 over the same
rates and outer settings. AdamW with a rate that falls to 0 as a cosine. The settings are chosen by the first seed; the
figure is the held-out loss of `diloco` over that of `all-reduce`, each at its best settings, of other seeds.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor, nn

import quorate
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from quorate.workloads.stdlib_bytes import StdlibBytes, Windows

WORKERS, SYNC_EVERY, BATCH, RANK, SCALE = 4, 16, 2, 8, 2.0
RATES = (1e-3, 3e-3, 1e-2, 2e-2)
OUTER = ((None, None), (1.0, 0.0), (0.7, 0.6), (0.7, 0.9), (0.5, 0.9))
"""Rate and momentum of outer steps; None: those of the strategy, here 1.0 and 0.5."""
STRATEGIES = ("all-reduce", "diloco")
BAR = 1.02


@dataclass(frozen=True)
class Run:
    """One training of adapters."""

    strategy: str
    rate: float
    outer: tuple[float | None, float | None] = (None, None)
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        if self.strategy == "all-reduce":
            return {}
        return {"sync_every": SYNC_EVERY, "outer_rate": self.outer[0], "outer_momentum": self.outer[1]}


@dataclass(frozen=True)
class Task:
    """What all runs have in common."""

    base: Path
    width: int
    layers: int
    steps: int


class Adapter(nn.Module):
    """A frozen linear layer with B A beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + scale B A x."""
        added: Tensor = SCALE * (x @ self.a.t() @ self.b.t())
        return self.base(x) + added


@cache
def workload(width: int, layers: int) -> StdlibBytes:
    """Return the workload, with its texts."""
    return StdlibBytes(length=64, width=width, layers=layers, most_bytes=4_000_000)


def train_base(task: Task, steps: int) -> float:
    """Train the base on code, keep it in a file, and return its loss on the last batch."""
    code = workload(task.width, task.layers)
    model = code.model(0)
    optimizer = code.optimizer(model)
    text, draws = code._texts[0].numbers, torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = code.loss(model, batch_of(text, 16, draws))
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), task.base)
    return float(loss.detach())


def batch_of(text: Tensor, count: int, draws: torch.Generator) -> Windows:
    """Return windows of random places."""
    begins = torch.randint(len(text) - 65, (count,), generator=draws)
    windows = torch.stack([text[begin : begin + 65] for begin in begins.tolist()])
    return Windows(windows.long())


def swapped(text: Tensor) -> Tensor:
    """Return the text with the case of its letters swapped."""
    table = torch.tensor(list(bytes(range(256)).swapcase()), dtype=torch.uint8)
    return table[text.long()]


def with_adapters(task: Task, seed: int) -> nn.Module:
    """Return the frozen base with adapters that a seed has drawn."""
    model: Any = workload(task.width, task.layers).model(0)
    model.load_state_dict(torch.load(task.base))
    model.requires_grad_(False)
    torch.manual_seed(seed)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Adapter(layer))
    return model


def trained(task: Task, run: Run) -> float:
    """Return the held-out loss of one training, in nats per byte."""
    torch.set_num_threads(1)
    code = workload(task.width, task.layers)
    text, test = (swapped(part.numbers) for part in code._texts)

    def live(wire: Any) -> float:
        place = current.enter(wire, thread_only=True)
        try:
            world, model = quorate.join(), with_adapters(task, run.seed)
            plain = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=run.rate)
            optimizer: Any = quorate.distribute(plain, model, run.strategy, **run.settings)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.steps)
            draws = torch.Generator().manual_seed(1000 * run.seed + world.rank)
            for _ in range(task.steps):
                optimizer.zero_grad()
                code.loss(model, batch_of(text, BATCH, draws)).backward()
                optimizer.step()
                schedule.step()
            optimizer.finish()
            loss = 0.0
            if world.is_first:
                with torch.no_grad():
                    loss = float(code.loss(model, batch_of(test, 256, torch.Generator().manual_seed(1))))
            place.leave()
            return loss
        finally:
            current.forget(thread_only=True)

    return float(VirtualWorld(WORKERS).run(live)[0])


def losses_of(pool: ProcessPoolExecutor, task: Task, runs: Sequence[Run]) -> list[float]:
    """Return the losses of these runs, and print each as it comes."""
    losses = []
    for run, loss in zip(runs, pool.map(trained, [task] * len(runs), runs), strict=True):
        print(f"{run.strategy}, rate {run.rate:g}, outer {run.outer}, seed {run.seed}: {loss:.4f}", file=sys.stderr)
        losses.append(loss)
    return losses


def main() -> int:
    """Measure, and report."""
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train (2)")
    options = parser.parse_args()
    width, layers, base_steps, steps = (96, 2, 60, 32) if options.quick else (384, 6, 400, 128)
    rates, outer, seeds = (RATES[1:3], OUTER[:2], 1) if options.quick else (RATES, OUTER, 3)
    settings = {"workers": WORKERS, "sync_every": SYNC_EVERY, "rank": RANK, "steps": steps, "seeds": seeds}
    report = record.Report("adapters", settings)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, context) as pool:
        task = Task(Path(folder, "base.pt"), width, layers, steps)
        loss = train_base(task, base_steps)
        count = sum(p.numel() for p in workload(width, layers).model(0).parameters())
        print(f"a base of {count:,} parameters ends at a loss of {loss:.3f}", file=sys.stderr)
        grid = [Run("all-reduce", rate) for rate in rates]
        grid += [Run("diloco", rate, pair) for rate in rates for pair in outer]
        losses = dict(zip(grid, losses_of(pool, task, grid), strict=True))
        best = {name: min((r for r in grid if r.strategy == name), key=losses.__getitem__) for name in STRATEGIES}
        again = [Run(run.strategy, run.rate, run.outer, seed) for seed in range(1, seeds + 1) for run in best.values()]
        found = dict(zip(again, losses_of(pool, task, again), strict=True))
    by_name = {name: [loss for run, loss in found.items() if run.strategy == name] for name in STRATEGIES}
    for name, run in best.items():
        report.rows.append(record.figure(f"loss of {name}, rate {run.rate:g}, outer {run.outer}", by_name[name]))
    ratios = [ours / theirs for theirs, ours in zip(*by_name.values(), strict=True)]
    report.rows.append(record.figure("loss of diloco / all-reduce, each at its best settings", ratios))
    usual = min(losses[run] for run in grid if run.strategy == "diloco" and run.outer == (None, None))
    report.rows.append(
        record.figure("the same with usual outer settings, first seed", [usual / losses[best["all-reduce"]]])
    )
    report.bar("median loss of diloco / all-reduce", record.median_of(ratios), at_most=BAR)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
