"""What is learnt while some workers send wrong gradients, under each aggregation rule, and what a rule costs.

    python benchmarks/robust.py [--quick] [--parts attacks coded cost]

- `attacks`: 10 and 15 virtual workers train a small network on the digits that scikit-learn bundles, with the strategy
  `robust` (momentum 0.9), each rule under each attack of 0, 1 or 3 workers: test accuracy in percent, in a table and,
  with --picture FILE, a heat map. Workers have like data. An attack that flips labels is one of data: the last workers
  learn that a digit c is 9 - c.
- `coded`: the same training with `draco` and `detox`, whose groups compute the same batches, of 1 worker in each group:
  under how many attacks `draco` ends elsewhere than without attackers, in any bit, and the accuracy of both.
- `cost`: seconds of a step's exchange of 10 million numbers among 4 real workers, `median` and `centered-clipping` over
  the mean that `all-reduce` forms in shared memory, in turn (A B C A B C); and memory.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quorate.core.vectors import empty_vector, header_in

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402

from quorate.aggregation import rules  # noqa: E402
from quorate.aggregation.attacks import ATTACKS  # noqa: E402
from quorate.core.errors import ConfigurationError  # noqa: E402
from tests.support.joined import joined  # noqa: E402
from tests.support.processes import run_real_world  # noqa: E402

LABELS = "label-flip"
ALL_ATTACKS = (*ATTACKS, LABELS)
STEPS, BATCH, RATE = 150, 16, 0.3
NUMBERS = 10_000_000
RULES = [name for name in rules if name not in ("majority", "mean")]
WEAK = ("sign-flip", "constant", "noise", "nan", "inner-product")


def digits() -> tuple[Any, Any, Any, Any]:
    """Images and labels to train on, and others."""
    import torch
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def train(rule: str, f: int, attack: str, data: Any, seed: int, world: Any) -> float:
    """One worker's part; the accuracy at the end, in percent."""
    import torch
    from torch import nn

    import quorate

    x, y, others, labels = data
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    settings: dict[str, Any] = {"reduce": rule, **({} if rule == "mean" else {"f": f})}
    if attack and attack != LABELS and f:
        settings["attack"] = f"{attack}:{f}"
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, "robust", **settings)
    draw = torch.Generator().manual_seed(1000 * seed + world.rank)
    flips = attack == LABELS and world.rank >= world.size - f
    for _ in range(STEPS):
        rows = torch.randint(0, len(x), (BATCH,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), 9 - y[rows] if flips else y[rows]).backward()
        optimizer.step()
    optimizer.finish()
    with torch.no_grad():
        return 100 * float((model(others).argmax(1) == labels).float().mean())


def accuracy(workers: int, rule: str, f: int, attack: str, data: Any, seeds: int) -> float | None:
    """In the mean over seeds; None where the rule does not bear so many."""
    from quorate.wire.virtual.world import VirtualWorld

    try:
        runs = [
            VirtualWorld(workers, timeout=600.0).run(joined(partial(train, rule, f, attack, data, seed)))[0]
            for seed in range(seeds)
        ]
    except ConfigurationError:
        return None
    return sum(runs) / len(runs)


def coded_end(strategy: str, attack: str, data: Any, world: Any) -> tuple[float, list[float]]:
    """One worker's part: the accuracy and the parameters at the end; workers of a group draw the same batches."""
    import torch
    from torch import nn

    import quorate
    from quorate.strategies.parts.coded_steps import in_groups

    x, y, others, labels = data
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    settings: dict[str, Any] = {"attack": f"{attack}:1"} if attack and attack != LABELS else {}
    plain = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer: Any = quorate.distribute(plain, model, strategy, on_nonfinite="ignore", s=1, **settings)
    group = in_groups(strategy, 1, 2, world.size).group_of(world.rank, world.size)
    draw = torch.Generator().manual_seed(group)
    flips = attack == LABELS and world.rank == world.size - 1
    for _ in range(STEPS):
        rows = torch.randint(0, len(x), (BATCH,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), 9 - y[rows] if flips else y[rows]).backward()
        optimizer.step()
    optimizer.finish()
    with torch.no_grad():
        right = 100 * float((model(others).argmax(1) == labels).float().mean())
    return right, [float(number) for p in model.parameters() for number in p.detach().flatten()]


def coded(report: record.Report, sizes: Sequence[int], strategies: Sequence[str], attacks: Sequence[str]) -> None:
    """Votes, under these attacks."""
    from quorate.wire.virtual.world import VirtualWorld

    data = digits()

    def end(strategy: str, attack: str, workers: int) -> tuple[float, list[float]]:
        return VirtualWorld(workers, timeout=600.0).run(joined(partial(coded_end, strategy, attack, data)))[0]

    for workers in sizes:
        for strategy in strategies:
            free, wanted = end(strategy, "", workers)
            elsewhere, found = 0, [free]
            for attack in attacks:
                right, numbers = end(strategy, attack, workers)
                elsewhere += numbers != wanted
                found.append(right)
            name = f"{workers} workers, {strategy}"
            print(f"{name}: {min(found):.1f} to {max(found):.1f} %, {elsewhere} attacks end elsewhere", flush=True)
            report.rows.append(record.figure(f"{name}, without and under attacks: accuracy", found))
            if strategy == "draco":
                report.bar(f"{name}: attacks that end elsewhere than without", float(elsewhere), at_most=0.0)


def under_attack(
    report: record.Report,
    sizes: Sequence[int],
    many: Sequence[int],
    names: Sequence[str],
    seeds: int,
    picture: Path | None,
) -> None:
    """All rules, attacks and numbers of attackers."""
    import logging

    logging.disable()
    data, table = digits(), dict[tuple[int, int, str, str], float | None]()
    for workers in sizes:
        calm = accuracy(workers, "mean", 0, "", data, seeds)
        assert calm is not None
        report.rows.append(record.figure(f"{workers} workers, mean, nobody wrong: accuracy", [calm]))
        for rule in names:
            found = accuracy(workers, rule, 0, "", data, seeds)
            if found is not None:
                report.rows.append(record.figure(f"{workers} workers, {rule}, nobody wrong: accuracy", [found]))
        for f in many:
            best: dict[str, float] = {}
            for attack in ALL_ATTACKS:
                for rule in ("mean", *names):
                    found = table[workers, f, rule, attack] = accuracy(workers, rule, f, attack, data, seeds)
                    if found is None:
                        continue
                    report.rows.append(
                        record.figure(f"{workers} workers, {f} wrong, {attack}, {rule}: accuracy", [found])
                    )
                    if rule != "mean":
                        best[attack] = max(best.get(attack, 0.0), found)
                print(f"{workers} workers, {f} wrong, {attack}: best {best.get(attack, 0):.1f} %", flush=True)
            if f == 1:
                worst = min(best.values())
                report.bar(
                    f"{workers} workers, 1 wrong: best rule under the worst attack, points lost",
                    calm - worst,
                    at_most=1.0,
                )
                mean = min(table[workers, 1, "mean", attack] or 0.0 for attack in ALL_ATTACKS)
                report.bar(f"{workers} workers, 1 wrong: the mean under the worst attack", mean, at_most=50.0)
    if picture is not None:
        drawn(table, picture)


def drawn(table: dict[tuple[int, int, str, str], float | None], path: Path) -> None:
    """A heat map of accuracies."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    shown = sorted({(workers, f) for workers, f, _, _ in table})
    names = ["mean", *RULES]
    figure, axes = plt.subplots(1, len(shown), figsize=(5.2 * len(shown), 5), sharey=True, squeeze=False)
    for axis, (workers, f) in zip(axes[0], shown, strict=True):
        numbers = [[table.get((workers, f, rule, attack)) for attack in ALL_ATTACKS] for rule in names]
        filled = [[float("nan") if x is None else x for x in row] for row in numbers]
        axis.imshow(filled, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        for row, line in enumerate(numbers):
            for column, x in enumerate(line):
                text = "–" if x is None else f"{x:.0f}"
                axis.text(
                    column, row, text, ha="center", va="center", fontsize=7, color="k" if x is None or x >= 60 else "w"
                )
        axis.set_title(f"{workers} workers, {f} wrong", fontsize=10)
        axis.set_xticks(range(len(ALL_ATTACKS)), ALL_ATTACKS, rotation=60, ha="right", fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def exchange(kind: str, repeats: int, world: Any) -> dict[str, float]:
    """One worker's part: median seconds of a mean of all, or of what a rule makes, of 10 million numbers."""
    import torch
    from sharded import live

    from quorate.buckets.flat import layout_of
    from quorate.means.reduction import reduction_of

    torch.set_num_threads(1)
    layout = layout_of([(str(part), torch.zeros(NUMBERS // 10)) for part in range(10)], header=8)
    x = empty_vector(layout, world.wire.empty)
    seconds, before, peak = list[float](), live(), 0
    reducer = reduction_of({} if kind == "all-reduce" else {"reduce": kind}).reducer(layout, world.wire, 0)
    for turn in range(repeats + 1):
        for part in x.parts:
            part.normal_()
        header_in(x).fill_(1.0)
        world.barrier()
        begin = time.perf_counter()
        reducer.start(x).wait()
        seconds.append(time.perf_counter() - begin)
        if turn:
            peak = max(peak, live() - before)
    timed = sorted(seconds[1:])
    return {"seconds": timed[len(timed) // 2], "held": peak / (4 * NUMBERS)}


def cost(report: record.Report, turns: int, repeats: int) -> None:
    """Beside the mean."""
    kinds = ("all-reduce", "median", "centered-clipping")
    found: dict[str, list[list[dict[str, float]]]] = {kind: [] for kind in kinds}
    for turn in range(turns):
        for kind in (*kinds[turn % 3 :], *kinds[: turn % 3]):
            said = run_real_world(4, partial(exchange, kind, repeats), 300.0, environment={"OMP_NUM_THREADS": "1"})
            found[kind].append(said)
            print(f"turn {turn + 1}, {kind}: {slowest(said):.3f} s", flush=True)
    for kind, each in found.items():
        report.rows.append(
            record.figure(f"{kind}: seconds of 10 million numbers, 4 workers", [slowest(one) for one in each])
        )
        held = [max(one["held"] for one in said) for said in each]
        report.rows.append(record.figure(f"{kind}: gradients held between exchanges", held))
        if kind != "all-reduce":
            ratios = [slowest(a) / slowest(b) for a, b in zip(each, found["all-reduce"], strict=True)]
            report.rows.append(record.figure(f"{kind} / all-reduce, seconds", ratios))
            report.bar(f"{kind} / all-reduce, seconds", report.rows[-1].median, at_most=2.5)
            report.bar(f"{kind}: gradients held", sorted(held)[len(held) // 2], at_most=2.0)


def slowest(said: list[dict[str, float]]) -> float:
    """Seconds of one exchange."""
    return max(one["seconds"] for one in said)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument(
        "--parts", nargs="*", default=["attacks", "coded", "cost"], choices=["attacks", "coded", "cost"], help="what"
    )
    parser.add_argument("--seeds", type=int, default=1, help="of each training (1)")
    parser.add_argument("--turns", type=int, default=5, help="of each exchange (5)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a heat map")
    told = parser.parse_args()
    if told.picture is not None and find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    about = {"steps": STEPS, "batch": BATCH, "rate": RATE, "momentum": 0.9, "seeds": told.seeds, "turns": told.turns}
    report = record.Report("robust", about)
    if "attacks" in told.parts:
        if told.quick:
            under_attack(report, (10,), (1,), ("trimmed-mean", "krum"), 1, told.picture)
        else:
            under_attack(report, (10, 15), (1, 3), RULES, told.seeds, told.picture)
    if "coded" in told.parts:
        if told.quick:
            coded(report, (10,), ("draco",), ("sign-flip", "nan"))
        else:
            coded(report, (10, 15), ("draco", "detox"), ALL_ATTACKS)
    if "cost" in told.parts:
        cost(report, *((1, 3) if told.quick else (told.turns, 9)))
    return report.show(told)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
