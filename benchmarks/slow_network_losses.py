"""How long does it take over a slow network to learn as much as torch DDP has in a number of steps?

Four hosts (network namespaces, for root on Linux) of one worker each, joined by links of 100 Mbit/s, train the
transformer of `slow_network.py` with AdamW. DDP makes `--steps` steps; its loss in the end is the mean of all workers'
losses in their last ten. Every other way trains from the same parameters until its loss, taken in the same manner every
five steps, is as low, or for eight times as many steps at most.

Figures, turn by turn: seconds, steps, and bytes through the busiest cable over those of the gradient, all until then;
and DDP's seconds over these. Links are fast in the first four steps of each, in which memory is taken and connections
are made. Under `diloco` and `sparse-loco` the losses are those of each worker's own replica.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
from hosts import run_slowed, through_the_cable, until_slow  # noqa: E402
from slow_network import DDP, HOOKS, batches, hooked, network  # noqa: E402

from tests.support.hosts import Host, are_possible, hosts  # noqa: E402

COUNT, RATE, LR = 4, "100mbit", 5e-4
SMOOTHED, EVERY, MOST = 10, 5, 8
LOCAL = {"sync_every": 20, "outer_rate": 1.0}
OURS: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "half fp16": {"compress": "half", "dtype": "float16"},
    "qsgd": {"compress": "qsgd", "levels": 7},
    "power-sgd": {"compress": "power-sgd", "rank": 4, "start": 2},
    "top-k": {"compress": "top-k", "density": 0.01},
    "arc-top-k": {"compress": "arc-top-k", "start": 2},
    "diloco": {"strategy": "diloco", **LOCAL, "outer_momentum": 0.5},
    "diloco, 4 bits": {"strategy": "diloco", **LOCAL, "outer_momentum": 0.5, "compress": "blocks", "bits": 4},
    "diloco, top-k": {"strategy": "diloco", **LOCAL, "outer_momentum": 0.5, "compress": "top-k", "density": 0.03},
    "sparse-loco": {"strategy": "sparse-loco", **LOCAL},
}


@dataclass(frozen=True)
class Way:
    """One of what is measured: `steps` at most, and no more once the loss is at most `target`."""

    name: str
    steps: int
    target: float
    folder: str = ""


def train(way: Way, world: Any) -> dict[str, float]:
    """One worker's part."""
    import torch

    import quorate

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=LR)
    if way.name == DDP or way.name in HOOKS:
        model = hooked(model, way.name)
    else:
        settings = {"strategy": "all-reduce", **OURS[way.name]}
        optimizer = quorate.distribute(optimizer, model, **settings)
    draws, losses = batches(world.rank), deque[float](maxlen=SMOOTHED)

    def step() -> None:
        x = next(draws)
        loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))

    for _ in range(4):
        step()
    until_slow(way.folder, world)
    carried, begin, count, mean = through_the_cable(), time.monotonic(), 4, float("inf")
    while count < way.steps and mean > way.target:
        step()
        count += 1
        if count % EVERY == 0 and count >= SMOOTHED:
            mean = world.mean(sum(losses) / len(losses))
    took = time.monotonic() - begin
    moved = max(now - then for now, then in zip(through_the_cable(), carried, strict=True))
    gradient = 4 * sum(p.numel() for p in model.parameters())
    return {"seconds": took, "steps": count, "bytes": moved / gradient, "loss": mean}


def measured(on: Sequence[Host], way: Way) -> dict[str, float]:
    """The slowest worker's seconds, the steps, the busiest host's bytes, and the loss."""
    said = run_slowed(on, RATE, lambda folder: partial(train, replace(way, folder=folder)))
    return {name: max(one[name] for one in said) for name in said[0]}


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=5, help="of all ways (5)")
    parser.add_argument("--steps", type=int, default=60, help="of DDP (60)")
    parser.add_argument("--ways", nargs="*", default=(*HOOKS, *OURS), choices=(*HOOKS, *OURS), help="beside DDP")
    told = parser.parse_args()
    if not are_possible():
        print("benchmarks/slow_network_losses.py needs root on Linux, to make network namespaces", file=sys.stderr)
        return 2
    if told.quick:
        told.turns, told.steps, told.ways = 1, 15, ["top-k"]
    report = record.Report("slow_network_losses", {"turns": told.turns, "steps": told.steps, "rate": RATE, "lr": LR})
    found: dict[str, list[dict[str, float]]] = {way: [] for way in (DDP, *told.ways)}
    with hosts(COUNT) as on:
        for turn in range(told.turns):
            for way in found:
                target = found[DDP][-1]["loss"] if way != DDP else float("-inf")
                one = measured(on, Way(way, told.steps * (1 if way == DDP else MOST), target))
                found[way].append(one)
                words = ", ".join(f"{name} {value:.4g}" for name, value in one.items())
                print(f"turn {turn + 1}, {way}: {words}", flush=True)
    best = 0.0
    for way, turns in found.items():
        for name in ("seconds", "steps", "bytes"):
            report.rows.append(record.figure(f"{way}: {name}", [one[name] for one in turns]))
        pairs = list(zip(found[DDP], turns, strict=True))
        if way != DDP and all(theirs["loss"] >= ours["loss"] for theirs, ours in pairs):
            ratio = record.figure(f"{way} / ddp, to equal loss", [t["seconds"] / o["seconds"] for t, o in pairs])
            report.rows.append(ratio)
            best = max(best, ratio.median) if way in OURS else best
    report.bar("the best of ours / ddp, to equal loss", best or None, at_least=5.0)
    return report.show(told)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
