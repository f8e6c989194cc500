"""Late learners turned beside the cosine gate, and `sparse-loco` by the published rules beside `diloco`.

Virtual workers train the two small models of `codec_trainings.py` with AdamW. What is learnt depends on the order of
virtual arrivals, and not on this machine: the same seeds give the same figures. Times are virtual, and nothing is
timed.

Turned: four learners under `async-local-sgd` (each with H steps) and `decoupled-diloco`. A step takes 10 ms, and 40 ms
of the last learner. Three quarters of a learner's examples are of its kind: their label, modulo 4, is its rank. The
outer optimizer (SGD with three rates and momenta, or Adam) and the constants, as many for each side, are chosen
together on a seed of its own, for each `late` by itself. The loss is that of the common point on held-out examples of
all kinds, in the mean over the last quarter of the training.

Sparse: four workers with examples of all kinds. The outer rate and momentum of `diloco`, and the outer rate of
`sparse-loco`, are chosen on a seed of their own. Bytes are those that a worker sends in a period; the computed ones are
64 numbers of 14 bits in each tile of 64 x 64 and a table of 16 bytes for each matrix, to each of the others, and dense
vectors.
"""

from __future__ import annotations

import contextlib
import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch
from codec_trainings import Way, model_of, trained
from outer_trainings import task_of
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.world import VirtualWorld

SIZE, STEP, SLOWER, H, BATCH, RATE, TUNING = 4, 0.01, 4.0, 20, 32, 3e-3, 99
"""Learners, seconds of a step, the factor of the slow learner, local steps, examples of a step, the inner rate, and the
seed on which settings are chosen."""
TASKS = {"digits": "digits", "text": "stdlib-bytes"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "async-local-sgd": {"sync_every": H, "dynamic": False},
    "decoupled-diloco": {"sync_every": H, "wait_for": 2, "window": 0.0},
}
OUTER: list[dict[str, Any]] = [
    *({"outer_rate": rate, "outer_momentum": momentum} for rate in (0.5, 1.0) for momentum in (0.3, 0.6, 0.9)),
    *({"outer": "adam", "outer_rate": rate} for rate in (0.003, 0.01, 0.03)),
]
LATE: dict[str, list[dict[str, Any]]] = {
    "cosine": [{"late_alpha": 0.0}, {"late_alpha": 0.3}, {"late_cutoff": 6.0}, {"late_cutoff": 40.0}],
    "turn": [{"late_aligned": 0.0}, {"late_aligned": 0.9}, {"late_kappa": 4.0}, {"late_turned": 0.3}],
    "carry": [],
}
DILOCO = [(0.7, 0.9), (0.7, 0.6), (1.0, 0.3), (1.0, 0.5), (1.0, 0.7)]
SPARSE = [0.6, 1.0, 1.5, 2.2, 3.2, 4.5, 6.4, 9.0]


def drawn(task: str, rank: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a batch, three quarters of it with labels of the learner's kind."""
    x, y = task_of(TASKS[task]).drawn(8 * BATCH, draw)
    own = (y % SIZE == rank).nonzero().view(-1)[: 3 * BATCH // 4]
    chosen = torch.cat([own, torch.arange(BATCH - len(own))])
    return x[chosen], y[chosen]


def loss_of_learners(task: str, strategy: str, settings: Mapping[str, Any], seed: int, seconds: float) -> float:
    """Return the held-out loss of the common point, in the mean over the last quarter of the virtual `seconds`."""
    inputs, wanted = task_of(TASKS[task]).held_out()
    losses = list[float]()

    def live(wire: Wire) -> None:
        place = current.enter(wire, thread_only=True)
        try:
            world, model, other = quorate.join(), model_of(task, seed), model_of(task, seed)
            plain = AdamW(model.parameters(), lr=RATE)
            optimizer: Any = quorate.distribute(plain, model, strategy, on_nonfinite="ignore", **settings)
            worker = optimizer.__dict__["_quorate_worker"]
            draw = torch.Generator().manual_seed(100 + world.rank + 1000 * seed)
            pace, begin, step = STEP * (SLOWER if world.rank == SIZE - 1 else 1.0), wire.clock.now(), 0
            while wire.clock.now() - begin < seconds:
                optimizer.zero_grad()
                x, y = drawn(task, world.rank, draw)
                cross_entropy(model(x), y).backward()
                wire.clock.sleep(pace * (0.95 + 0.1 * float(torch.rand((), generator=draw))))
                optimizer.step()
                step += 1
                if world.rank == 0 and step % (H // 2) == 0 and wire.clock.now() - begin > 0.75 * seconds:
                    for p, numbers in zip(other.parameters(), worker.state.common.segments(), strict=False):
                        p.data.copy_(numbers.view_as(p))
                    with torch.no_grad():
                        losses.append(float(cross_entropy(other(inputs), wanted)))
            optimizer.finish()
        finally:
            place.leave()

    with contextlib.redirect_stderr(io.StringIO()):
        VirtualWorld(SIZE, seed=seed, compute=Constant(0.0), generators=True).run(live)
    mean = statistics.fmean(losses)
    return mean if math.isfinite(mean) else math.inf


def chosen_settings(task: str, strategy: str, late: str, seconds: float, *, is_quick: bool) -> dict[str, Any]:
    """Return the best pair of an outer optimizer and constants of the treatment, on the seed for tuning."""
    outers, constants = (OUTER[4:5], LATE[late][:1]) if is_quick else (OUTER, LATE[late])
    pairs = [{**outer, **others} for outer in outers for others in ({}, *constants)]
    of_strategy = {**STRATEGIES[strategy], "late": late}
    return min(pairs, key=lambda pair: loss_of_learners(task, strategy, {**of_strategy, **pair}, TUNING, seconds))


def turned(report: record.Report, tasks: Sequence[str], seeds: int, seconds: float, *, is_quick: bool) -> None:
    """Measure the losses of late learners for each treatment, and hold those of "turn" against those of "cosine"."""
    for task in tasks:
        for strategy in list(STRATEGIES)[: 1 if is_quick else None]:
            ends: dict[str, list[float]] = {}
            for late in list(LATE)[: 2 if is_quick else None]:
                settings = chosen_settings(task, strategy, late, seconds, is_quick=is_quick)
                whole = {**STRATEGIES[strategy], "late": late, **settings}
                ends[late] = [loss_of_learners(task, strategy, whole, seed, seconds) for seed in range(seeds)]
                report.rows.append(record.figure(f"{task}, {strategy}, late={late}: loss", ends[late]))
                print(f"{task}, {strategy}, late={late}: {settings} {ends[late]}", file=sys.stderr, flush=True)
            ratio = statistics.median(a / b for a, b in zip(ends["turn"], ends["cosine"], strict=True))
            name = f"{task}, {strategy}: loss, turned / cosine gate"
            report.bar(name, None if is_quick else ratio, at_most=1.0)


def computed_bytes(task: str) -> float:
    """Return the bytes that a worker of four sends in a period of `sparse-loco`, computed from the shapes alone."""
    total = 0.0
    for p in model_of(task, 0).parameters():
        if p.dim() > 1 and p.numel() >= 1024:
            total += (SIZE - 1) * (p.numel() / 4096 * 64 * 14 / 8 + 16)
        else:
            total += 2 * (SIZE - 1) / SIZE * 4 * p.numel()
    return total


def bits_of_a_matrix(side: int = 1024) -> float:
    """Return the bits for each number of a matrix that a worker sends to each other one, in a period of two steps."""
    sent = list[int]()

    def live(wire: Wire) -> None:
        place = current.enter(wire, thread_only=True)
        try:
            world, model = quorate.join(), torch.nn.Linear(side, side, bias=False)
            plain = AdamW(model.parameters(), lr=RATE)
            optimizer: Any = quorate.distribute(plain, model, "sparse-loco", sync_every=2)
            bytes_out = optimizer.__dict__["_quorate_worker"].timer._meter.bytes_out
            for _ in range(2):
                optimizer.zero_grad()
                before = sum(bytes_out.values())
                model(torch.randn(8, side)).square().mean().backward()
                optimizer.step()
            sent.extend([sum(bytes_out.values()) - before] * (world.rank == 0))
            optimizer.finish()
        finally:
            place.leave()

    with contextlib.redirect_stderr(io.StringIO()):
        VirtualWorld(SIZE, seed=0, compute=Constant(0.0), generators=True).run(live)
    return 8 * sent[0] / (SIZE - 1) / side**2


def sparse(report: record.Report, tasks: Sequence[str], seeds: int, steps: int, *, is_quick: bool) -> None:
    """Measure the losses and bytes of `sparse-loco`, and hold them against those of `diloco` and the computed ones."""
    period = 30
    for task in tasks:
        inner = 3e-3

        def end_of(way: Way, seed: int, task: str = task, inner: float = inner) -> tuple[float, float]:
            result = trained(task, way, inner, seed, steps, every=steps, optimizer=AdamW)
            return result.losses[-1][1], result.nbytes * period

        dense_ways = [
            Way(name="diloco", strategy="diloco", settings={"sync_every": period, "outer_rate": r, "outer_momentum": m})
            for r, m in (DILOCO[2:3] if is_quick else DILOCO)
        ]
        sparse_ways = [
            Way(name="sparse-loco", strategy="sparse-loco", settings={"sync_every": period, "outer_rate": rate})
            for rate in (SPARSE[:1] if is_quick else SPARSE)
        ]
        ends: dict[str, list[tuple[float, float]]] = {}
        for ways in (dense_ways, sparse_ways):
            best = ways[0] if len(ways) == 1 else min(ways, key=lambda way: end_of(way, TUNING)[0])
            ends[best.name] = [end_of(best, seed) for seed in range(seeds)]
            print(f"{task}: {best.settings} {ends[best.name]}", file=sys.stderr, flush=True)
            report.rows.append(record.figure(f"{task}, {best.name}: loss", [loss for loss, _ in ends[best.name]]))
            report.rows.append(
                record.figure(f"{task}, {best.name}: bytes in a period", [n for _, n in ends[best.name]])
            )
        pairs = zip(ends["sparse-loco"], ends["diloco"], strict=True)
        ratio = statistics.median(a / b for (a, _), (b, _) in pairs)
        share = statistics.median(n for _, n in ends["sparse-loco"]) / computed_bytes(task)
        report.bar(f"{task}: loss, sparse-loco / diloco", None if is_quick else ratio, at_most=1.02)
        report.rows.append(record.figure(f"{task}, sparse-loco: bytes, measured / computed", [share]))


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3, help="of every training (3)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, seconds, steps = (1, 1.0, 60) if options.quick else (options.seeds, 4.0, 600)
    tasks = list(TASKS)[: 1 if options.quick else None]
    about = {"learners": SIZE, "seeds": seeds, "virtual seconds": seconds, "steps": steps, "tasks": tasks}
    report = record.Report("late_learners", about)
    turned(report, tasks, seeds, seconds, is_quick=options.quick)
    sparse(report, tasks, seeds, steps, is_quick=options.quick)
    report.bar("sparse-loco: bits a number, 1,024 x 1,024, to each other", bits_of_a_matrix(), at_most=0.22)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
