"""Is the planner's first choice the strategy with which two workers reach a loss first?

    python benchmarks/planned_choice.py [--quick] [--turns 5] [--cells undisturbed 100mbit]

A network of 0.3 million parameters learns noisy digits on two workers. In each cell the planner chooses among eight
strategies and codecs, from three sources: blocks timed in a script that runs alone, the network and the late worker as
they are made, and the passes that each strategy needs, from virtual workers. Then all eight train for real, in turns
(A B C ..., B C ... A), until their smoothed loss on held-out images is that of all-reduce after `STEPS` steps. The best
has the least median. Where it is not the first choice, both train again in pairs (A B A B). The ratio is that of the
seconds of the first choice over those of the best; the bar is that its median is at most 1.05 in four of five cells.

Cells: undisturbed; one worker late by 20 ms in each step; links of 1 Gbit/s and of 100 Mbit/s between two network
namespaces, which need root on Linux; and digits that are divided by label. Predicted steps are held against real ones.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
from hosts import run_slowed, until_slow  # noqa: E402

from tests.support.hosts import are_possible, hosts  # noqa: E402
from tests.support.joined import joined  # noqa: E402
from tests.support.processes import run_real_world  # noqa: E402

STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "all-reduce": {},
    "all-reduce:compress=half": {"compress": "half"},
    "all-reduce:compress=top-k": {"compress": "top-k"},
    "eager-solo": {},
    "eager-majority": {},
    "local-sgd:sync_every=4": {"sync_every": 4},
    "diloco:sync_every=8": {"sync_every": 8},
    "d-psgd": {},
}
QUICK = ("all-reduce", "all-reduce:compress=half", "eager-solo", "local-sgd:sync_every=4")
WIDTH, BATCH, RATE, MOMENTUM = 512, 16, 0.02, 0.9
STEPS, LOOK_EVERY, SMOOTHED, LONGER = 60, 3, 0.6, 4
"""Steps of all-reduce to the loss, steps between two looks, the weight of earlier looks, and how many times as many
steps others may take."""
DELAY = 0.020
LATENCY, FREE = 2e-4, 1.25e9
LIMIT = 300.0


@dataclass(frozen=True)
class Cell:
    """The conditions of one comparison; bandwidth in bytes per second."""

    name: str
    rate: str | None = None
    bandwidth: float = FREE
    delay: float = 0.0
    is_skewed: bool = False


CELLS = (
    Cell("undisturbed"),
    Cell("slow worker", delay=DELAY),
    Cell("1gbit", "1gbit", 125e6),
    Cell("100mbit", "100mbit", 12.5e6),
    Cell("skewed", is_skewed=True),
)


@cache
def digits() -> Any:
    """Return training images and labels, and those that are held out."""
    from quorate.workloads.digits import Digits

    (images, labels), held_out = ((part.tensors[0].flatten(1), part.tensors[1]) for part in
                                  (Digits().dataset(train=True), Digits().dataset(train=False)))  # fmt: skip
    return images, labels, held_out


def network() -> Any:
    """Return the model."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


@dataclass(frozen=True)
class Training:
    """The part of one worker."""

    strategy: str
    steps: int
    cell: Cell
    folder: str = ""
    seed: int = 0
    is_virtual: bool = False

    def __call__(self, world: Any) -> list[tuple[int, float, float]]:
        """Train; return steps, seconds and smoothed held-out loss at each look of this worker."""
        import torch
        from torch.nn.functional import cross_entropy

        import quorate

        torch.set_num_threads(1)
        images, labels, (held_images, held_labels) = digits()
        own = torch.arange(len(labels))
        if self.cell.is_skewed:
            own = own[labels % 2 == world.rank] if world.size == 2 else own
        draw = torch.Generator().manual_seed(1000 * self.seed + world.rank)
        model = network()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        optimizer = quorate.distribute(optimizer, model, self.strategy.partition(":")[0], **STRATEGIES[self.strategy])
        late = self.cell.delay if world.rank == 1 and not self.is_virtual else 0.0
        if self.folder:
            until_slow(self.folder, world)
        looks, smoothed, began = [], math.nan, time.perf_counter()
        for step in range(1, self.steps + 1):
            places = own[torch.randint(len(own), (BATCH,), generator=draw)]
            x = images[places] + 0.5 * torch.randn(BATCH, 64, generator=draw)
            time.sleep(late)
            cross_entropy(model(x), labels[places]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % LOOK_EVERY == 0 and world.rank == 0:
                with torch.no_grad():
                    loss = float(cross_entropy(model(held_images), held_labels))
                smoothed = loss if math.isnan(smoothed) else SMOOTHED * smoothed + (1 - SMOOTHED) * loss
                looks.append((step, time.perf_counter() - began, smoothed))
        optimizer.finish()
        return looks


def reached(looks: Sequence[tuple[int, float, float]], target: float) -> tuple[float, float]:
    """Return steps and seconds until the smoothed loss was as low as the target; infinite if it never was."""
    return next(((float(step), seconds) for step, seconds, loss in looks if loss <= target), (math.inf, math.inf))


def virtual(strategy: str, cell: Cell, steps: int) -> list[tuple[int, float, float]]:
    """Return the looks of virtual workers; the late one is as late."""
    from quorate.wire.virtual.network import Network
    from quorate.wire.virtual.world import VirtualWorld

    def compute(rank: int, step: int) -> float:
        return 0.01 + cell.delay * (rank == 1)

    world = VirtualWorld(2, compute=compute, network=Network(latency=LATENCY, bandwidth=cell.bandwidth))
    return world.run(joined(Training(strategy, steps, cell, is_virtual=True)))[0]


@dataclass
class Passes:
    """The steps of each strategy to the target, and its passes over those of all-reduce."""

    target: float
    steps: dict[str, float] = field(default_factory=dict)

    def of(self, strategy: str) -> float:
        return self.steps[strategy] / self.steps["all-reduce"]


def passes_of(cell: Cell, strategies: Sequence[str]) -> Passes:
    """Return what virtual workers need."""
    usual = virtual("all-reduce", cell, STEPS)
    passes = Passes(target=usual[-1][2], steps={"all-reduce": float(STEPS)})
    for strategy in strategies:
        if strategy != "all-reduce":
            passes.steps[strategy] = reached(virtual(strategy, cell, LONGER * STEPS), passes.target)[0]
    return passes


def timed_model() -> Any:
    """Return the planner's model of this script, run alone twice at a time."""
    from quorate.cli.planner.trials import timed
    from quorate.launch.warm.run_server import RunServer
    from quorate.planning.measured import model_from

    with RunServer() as server:
        answer = timed(str(Path(__file__).resolve()), ["--train"], axes=(), at_once=2, server=server)
    return model_from(answer, 2 * BATCH, 2)


def planned(model: Any, cell: Cell, passes: Passes, strategies: Sequence[str]) -> list[Any]:
    """Return the planner's choices, the first one first."""
    from quorate.cli.planner.strategies import StrategyOptions, choices_of, conditions_from
    from quorate.planning.choice import ranked
    from quorate.planning.cluster import Cluster
    from quorate.planning.layouts import Layout
    from quorate.planning.prediction import predict

    late = f"rank:1:{1000 * cell.delay:g}ms" if cell.delay else None
    options = StrategyOptions(strategies=list(strategies), imbalance=late)
    learned = {name: passes.of(name) for name in strategies}
    conditions = replace(conditions_from(options), learned=learned)
    cluster = Cluster(workers=2, memory=1e12, bandwidth=cell.bandwidth, latency=LATENCY)
    prediction = predict(Layout(replicas=2, strategy="all-reduce"), model, cluster)
    choices, _ = choices_of([prediction], model, cluster, conditions, None)
    return ranked(choices, conditions.objective)


def real(strategy: str, cell: Cell, steps: int, turn: int, on: Sequence[Any]) -> list[tuple[int, float, float]]:
    """Return the looks of real workers."""
    training = Training(strategy, steps, cell, seed=turn)
    if cell.rate is None:
        return run_real_world(2, training, LIMIT, environment={"OMP_NUM_THREADS": "1"})[0]
    task_in: Callable[[str], Any] = lambda folder: replace(training, folder=folder)  # noqa: E731
    return run_slowed(on, cell.rate, task_in)[0]  # type: ignore[return-value]


def compare(report: record.Report, model: Any, cell: Cell, strategies: Sequence[str], turns: int) -> float | None:
    """Measure one cell; return the ratio of the first choice to the best."""
    passes = passes_of(cell, strategies)
    choices = planned(model, cell, passes, strategies)
    first = choices[0].prediction.layout.strategy
    foreseen = {choice.prediction.layout.strategy: choice for choice in choices}
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    a_step: dict[str, list[float]] = {name: [] for name in strategies}

    def one(name: str, turn: int, on: Sequence[Any]) -> float:
        needed = passes.steps[name]
        steps = round(1.5 * needed) if math.isfinite(needed) else LOOK_EVERY * 10
        looks = real(name, cell, steps, turn, on)
        a_step[name].append(looks[-1][1] / looks[-1][0])
        to_loss = reached(looks, passes.target)[1]
        print(f"{cell.name}, turn {turn + 1}, {name}: {to_loss:.2f} s to the loss", flush=True)
        return to_loss

    def measure(on: Sequence[Any]) -> tuple[str, list[float]]:
        for turn in range(turns):
            begin = turn % len(strategies)
            for name in (*strategies[begin:], *strategies[:begin]):
                seconds[name].append(one(name, turn, on))
        best = min(strategies, key=lambda name: (median(seconds[name]), name != first))
        if best == first:
            return best, [1.0]
        pairs = [(one(first, turn, on), one(best, turn, on)) for turn in range(turns)]
        return best, [min(own / its, 10.0) if math.isfinite(its) else 1.0 for own, its in pairs]

    if cell.rate is None:
        best, ratios = measure(())
    else:
        with hosts(2) as on:
            best, ratios = measure(on)
    for name in strategies:
        choice = foreseen[name].prediction.seconds
        report.rows.append(record.figure(f"{cell.name}: {name}: s a step", a_step[name]))
        report.rows.append(record.figure(f"{cell.name}: {name}: predicted / real", [choice / x for x in a_step[name]]))
        reaching = [each for each in seconds[name] if math.isfinite(each)]
        if reaching:
            report.rows.append(record.figure(f"{cell.name}: {name}: s to the loss", reaching))
    report.rows.append(record.figure(f"{cell.name}: first choice ({first}) / best ({best})", ratios))
    print(f"{cell.name}: first choice: {first}, best: {best}, ratio {report.rows[-1].median:.2f}", flush=True)
    return report.rows[-1].median


def train() -> int:
    """Train alone, for the planner, which ends it."""
    import quorate

    Training("all-reduce", 100_000, CELLS[0])(quorate.join())
    return 0


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--train", action="store_true", help="train alone")
    parser.add_argument("--turns", type=int, default=5, help="of all strategies in each cell (5)")
    parser.add_argument("--cells", nargs="*", default=[cell.name for cell in CELLS], help="only these")
    asked = parser.parse_args()
    if asked.train:
        return train()
    strategies = QUICK if asked.quick else tuple(STRATEGIES)
    turns = 1 if asked.quick else asked.turns
    names = ["undisturbed"] if asked.quick else asked.cells
    report = record.Report("planned_choice", {"turns": turns, "strategies": list(strategies), "cells": names})
    model = timed_model()
    ratios = []
    for cell in CELLS:
        if cell.name in names and (cell.rate is None or are_possible()):
            ratio = compare(report, model, cell, strategies, turns)
            ratios.append(ratio)
            report.bar(f"{cell.name}: first choice / best", ratio, at_most=1.05)
    within = sum(ratio is not None and ratio <= 1.05 for ratio in ratios) if len(ratios) == len(CELLS) else None
    report.bar("cells of five in which the first choice is within 5 %", within, at_least=4)
    return report.show(asked)


if __name__ == "__main__":
    sys.exit(main())
