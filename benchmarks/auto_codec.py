"""Does `compress="auto"` find the codec that a person would choose after trying all, and is it never slower than none?

Two workers train a transformer on the bytes of the standard library, with dense sums, with each candidate of
`compress="auto"` chosen by hand, and with `compress="auto"`. Each has a model and an optimizer of its own. They take
turns (A B C ..., B C ... A), `--steps` steps each, once the choice is made. Cells:

- `balanced`: two processes of one host;
- `1gbit`, `100mbit`: two hosts (network namespaces, for root on Linux) with links of that speed;
- `2000 tensors`: 2,000 small matrices in place of the transformer, two processes of one host;
- `late worker`: as balanced, where rank 1 sleeps 50 ms in each step;
- `10gbit, 2 ms`: two virtual workers in the virtual world, whose network has latency. A step computes for the seconds
  that the model takes in this process, with a noise of 2 %. Encoding and decoding take the seconds that they really do.

Figures, turn by turn: seconds a step over those of dense sums; and ratios of those of the best codec chosen by hand
(with the lowest median) to those of auto: of all candidates, and of those whose sums agree with dense ones as auto asks
for. `arc-top-k` is beside them, and no candidate. Auto's choice is printed, with all that it has noted.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
import slow_network  # noqa: E402
from hosts import LIMIT, RATES, run_slowed, until_slow  # noqa: E402

from quorate.wire import current  # noqa: E402
from quorate.wire.virtual.network import Network  # noqa: E402
from quorate.wire.virtual.world import VirtualWorld  # noqa: E402
from tests.support.hosts import are_possible, hosts  # noqa: E402
from tests.support.joined import joined  # noqa: E402
from tests.support.processes import run_real_world  # noqa: E402

COUNT = 2
DENSE, AUTO, ARC = "none", "auto", "arc-top-k:start=2"
BY_HAND = ("half", "blocks", "blocks:bits=4", "power-sgd:rank=4,start=0", "top-k:density=0.01")
ARMS = (DENSE, *BY_HAND, ARC, AUTO)
WARM, SETTLING = 4, 180
"""Steps before the turns, and at most so many until auto has chosen and its codecs have agreed with dense sums."""
LATE = 0.05
VIRTUAL = "10gbit, 2 ms"
CELLS = ("balanced", *RATES, "2000 tensors", "late worker", VIRTUAL)
AGREEMENT = 0.9


@dataclass(frozen=True)
class Cell:
    """One of what is measured."""

    name: str
    turns: int
    steps: int
    agreement: float
    folder: str = ""


def model_of(cell: Cell) -> Any:
    """The model of a cell, and a function that draws its loss."""
    import torch
    from torch import nn

    if cell.name == "2000 tensors":
        return nn.ParameterList([nn.Parameter(torch.randn(32, 32) / 32) for _ in range(2000)])
    return slow_network.network()


def loss_of(model: Any, draws: Any) -> Any:
    """The loss of the next batch."""
    import torch
    from torch import nn

    x = next(draws)
    if isinstance(model, nn.ParameterList):
        scale = x.float().mean() / 256
        return torch.stack([(p * scale).square().sum() for p in model]).mean()
    return torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def train(cell: Cell, world: Any) -> dict[str, Any]:
    """One worker's part: seconds a step by arm, turn by turn."""
    import torch

    import quorate

    torch.set_num_threads(1)
    slow_network.WIDTH, slow_network.HEADS, slow_network.LAYERS = 192, 4, 4
    trainings: dict[str, tuple[Any, Any]] = {}
    for arm in ARMS:
        torch.manual_seed(0)
        model = model_of(cell)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        chosen: dict[str, Any] = {"compress": arm} if arm != DENSE else {}
        if arm == AUTO:
            chosen |= {"candidates": BY_HAND, "agreement": cell.agreement}
        if cell.name == "2000 tensors" and arm != DENSE:
            chosen["dense_below"] = 0
        trainings[arm] = quorate.distribute(optimizer, model, "all-reduce", name=arm, **chosen), model
    draws, clock = slow_network.batches(world.rank), current.here().wire.clock
    if cell.folder:
        until_slow(cell.folder, world)
    if cell.name == VIRTUAL:
        for optimizer, _ in trainings.values():
            optimizer.__dict__["_quorate_worker"].means.reducer.measure(partial(spent, clock))

    def steps(arm: str, count: int) -> float:
        optimizer, model = trainings[arm]
        world.barrier()
        begin = clock.now()
        for _ in range(count):
            if cell.name == "late worker" and world.rank == 1:
                time.sleep(LATE)
            loss_of(model, draws).backward()
            optimizer.step()
            optimizer.zero_grad()
        world.barrier()
        return (clock.now() - begin) / count

    reducer, notes = trainings[AUTO][0].__dict__["_quorate_worker"].means.reducer, list[str]()
    reducer.choice_notes.append(lambda codecs, why: notes.append(f"{sorted(set(codecs.values()))}: {why}"))
    for arm in trainings:
        steps(arm, WARM)
    settling = WARM
    while settling < SETTLING and not reducer.has_settled:
        steps(AUTO, 2)
        settling += 2
    seconds: dict[str, list[float]] = {arm: [] for arm in trainings}
    order = list(trainings)
    for turn in range(cell.turns):
        first = turn % len(order)
        for arm in (*order[first:], *order[:first]):
            seconds[arm].append(steps(arm, cell.steps))
    barred = sorted({name.partition(":")[2] for name in reducer.state.barred})
    return {"seconds": seconds, "settling": settling, "notes": notes, "barred": barred}


@contextmanager
def spent(clock: Any, _: str) -> Iterator[None]:
    """Let the virtual time pass that real work takes inside."""
    begin = time.perf_counter()
    yield
    clock.sleep(time.perf_counter() - begin)


def compute_seconds(cell: Cell, count: int = 20) -> float:
    """The seconds of a forward and a backward pass in this process."""
    import torch

    torch.set_num_threads(1)
    slow_network.WIDTH, slow_network.HEADS, slow_network.LAYERS = 192, 4, 4
    model, draws, seconds = model_of(cell), slow_network.batches(0), []
    for _ in range(count):
        begin = time.perf_counter()
        loss_of(model, draws).backward()
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[count // 2]


def measured(cell: Cell) -> dict[str, Any]:
    """What the first worker says."""
    if cell.name == VIRTUAL:
        seconds = compute_seconds(cell)
        print(f"{cell.name}: a step computes for {seconds:.4f} s", flush=True)

        def compute(rank: int, step: int) -> float:
            return seconds * random.Random(1_000_003 * rank + step).gauss(1.0, 0.02)

        virtual = VirtualWorld(COUNT, network=Network(latency=2e-3, bandwidth=1.25e9), compute=compute)
        return virtual.run(joined(partial(train, cell)))[0]
    if cell.name in RATES:
        with hosts(COUNT) as on:
            of_all: list[dict[str, Any]] = run_slowed(
                on, cell.name, lambda folder: partial(train, replace(cell, folder=folder))
            )
            return of_all[0]
    of_all = run_real_world(COUNT, partial(train, cell), LIMIT, environment={"OMP_NUM_THREADS": "1"})
    return of_all[0]


def report_on(report: record.Report, name: str, said: dict[str, Any]) -> None:
    """The figures and bars of one cell."""
    seconds = said["seconds"]
    shares = {arm: [a / b for a, b in zip(seconds[arm], seconds[DENSE], strict=True)] for arm in seconds}
    report.rows.append(record.figure(f"{name}: s a step, dense", seconds[DENSE]))
    for arm, turns in shares.items():
        if arm != DENSE:
            report.rows.append(record.figure(f"{name}: {arm} / dense, seconds", turns))
    barred = said["barred"]
    print(*(f"{name}: auto: {note}" for note in said["notes"]), sep="\n", flush=True)
    print(f"{name}: {said['settling']} steps until it has settled; not in agreement: {barred}", flush=True)
    for words, arms in (("by hand", BY_HAND), ("by hand that agrees", [arm for arm in BY_HAND if arm not in barred])):
        by_hand = min((DENSE, *arms), key=lambda arm: record.median_of(shares[arm]) or 0.0)
        ratios = [a / b for a, b in zip(shares[by_hand], shares[AUTO], strict=True)]
        report.rows.append(record.figure(f"{name}: the best {words} ({by_hand}) / auto", ratios))
    report.bar(f"{name}: the best that agrees / auto, median", report.rows[-1].median, at_least=0.95)
    report.bar(f"{name}: the best that agrees / auto, lower end", report.rows[-1].low, at_least=0.9)
    dense = record.figure(f"{name}: dense / auto", [1 / b for b in shares[AUTO]])
    report.rows.append(dense)
    report.bar(f"{dense.name}, upper end", dense.high, at_least=1.0)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=9, help="of all arms (9)")
    parser.add_argument("--steps", type=int, default=4, help="each turn (4)")
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=CELLS)
    parser.add_argument("--agreement", type=float, default=AGREEMENT, help=f"as of compress=auto ({AGREEMENT})")
    told = parser.parse_args()
    if told.quick:
        told.turns, told.steps, told.cells = 3, 2, ["100mbit"]
    if not are_possible():
        print("network namespaces need root on Linux: left out are", *RATES, file=sys.stderr)
        told.cells = [name for name in told.cells if name not in RATES]
    settings = {"turns": told.turns, "steps": told.steps, "workers": COUNT, "agreement": told.agreement}
    report = record.Report("auto_codec", settings)
    for name in told.cells:
        report_on(report, name, measured(Cell(name, told.turns, told.steps, told.agreement)))
    return report.show(told)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
