"""What does a worker that is late cost replicas of shards, under `all-reduce` and under a quorum of one replica?

    python benchmarks/hybrid.py [--quick]

Two replicas of two shards each (ZeRO 3, four real workers, one torch thread each) train a small decoder under AdamW
on the bytes of Python's standard library. In turn (A B C D, B C D A, ...), each in processes of their own:

- `all-reduce`, and `eager-solo` (a quorum of one replica), with nobody late;
- both with rank 3 late by 200 ms in every step.

Figures: steps a second, the replicas' added up, each over its own time; that of `eager-solo` with a worker late over
the ideal where nobody waits: the other replica makes its steps as fast as with nobody late, and that of rank 3 is
200 ms longer at each; and the loss on held-out bytes after equally many examples, over that of `all-reduce`.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
import sharded  # noqa: E402

from tests.support.processes import run_real_world  # noqa: E402

LATE, DELAY, EACH, LENGTH, RATE = 3, 0.2, 4, 64, 1e-3
STRATEGIES = ("all-reduce", "eager-solo")


@dataclass(frozen=True)
class Side:
    """One of what is measured: the steps of each replica, and whether rank 3 is late."""

    strategy: str
    steps: tuple[int, int]
    is_late: bool
    seed: int

    @property
    def name(self) -> str:
        return f"{self.strategy}, a worker late" if self.is_late else self.strategy


def corpus() -> tuple[Any, Any]:
    """Bytes to train on, and others."""
    import torch

    folder, found = Path(os.__file__).parent, list[bytes]()
    for path in sorted(folder.glob("*.py")):
        found.append(path.read_bytes())
    whole = torch.frombuffer(bytearray(b"".join(found)), dtype=torch.uint8)
    cut = int(0.95 * len(whole))
    return whole[:cut], whole[cut:]


def batch(numbers: Any, draw: Any, count: int) -> tuple[Any, Any]:
    import torch

    places = torch.randint(0, len(numbers) - LENGTH - 1, (count,), generator=draw)
    rows = torch.stack([numbers[place : place + LENGTH + 1] for place in places.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def train(side: Side, world: Any) -> dict[str, float]:
    """One worker's part."""
    import torch
    from torch.nn.functional import cross_entropy

    import quorate

    torch.set_num_threads(1)
    model = sharded.network(192, 4)
    model = quorate.parallelize(model, world.mesh(replicas=2), zero=3)
    made = torch.optim.AdamW(model.parameters(), lr=RATE)
    optimizer: Any = quorate.distribute(made, model, side.strategy, compare_every=0)
    text, others = corpus()
    draw = torch.Generator().manual_seed(1000 * side.seed + world.rank)
    seconds = list[float]()
    for _ in range(side.steps[world.rank // 2]):
        begin = time.monotonic()
        if side.is_late and world.rank == LATE:
            time.sleep(DELAY)
        ids, targets = batch(text, draw, EACH)
        optimizer.zero_grad()
        cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        seconds.append(time.monotonic() - begin)
    optimizer.finish()
    with torch.no_grad():
        ids, targets = batch(others, torch.Generator().manual_seed(1), 256)
        loss = float(cross_entropy(model(ids).flatten(0, 1), targets.flatten()))
    timed = seconds[2:]
    return {"seconds": sum(timed) / len(timed), "loss": loss}


def rate(said: list[dict[str, float]]) -> float:
    """Steps a second of both replicas."""
    return sum(1 / said[first]["seconds"] for first in (0, 2))


def ideal(calm: list[dict[str, float]]) -> float:
    """The same where nobody waits for rank 3, of a run with nobody late."""
    return 1 / calm[0]["seconds"] + 1 / (calm[2]["seconds"] + DELAY)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=5, help="of all sides (5)")
    parser.add_argument("--steps", type=int, default=150, help="of a replica, in the mean (150)")
    told = parser.parse_args()
    turns, steps = (1, 20) if told.quick else (told.turns, told.steps)
    report = record.Report("hybrid", {"turns": turns, "steps": steps, "delay": DELAY, "batch": EACH, "tokens": LENGTH})
    found: dict[str, list[list[dict[str, float]]]] = {}
    split = steps, steps
    for turn in range(turns):
        sides = [
            Side("all-reduce", (steps, steps), False, turn),
            Side("eager-solo", (steps, steps), False, turn),
            Side("all-reduce", (steps, steps), True, turn),
            Side("eager-solo", split, True, turn),
        ]
        for side in sides if turn == 0 else (*sides[turn % 4 :], *sides[: turn % 4]):
            said = run_real_world(4, partial(train, side), 600.0, environment={"OMP_NUM_THREADS": "1"})
            found.setdefault(side.name, []).append(said)
            print(f"turn {turn + 1}, {side.name}: {rate(said):.2f} steps/s, loss {said[0]['loss']:.4f}", flush=True)
            if turn == 0 and side == sides[1]:
                quick, slow = said[0]["seconds"], said[2]["seconds"] + DELAY
                split = round(2 * steps * slow / (quick + slow)), round(2 * steps * quick / (quick + slow))
                sides[3] = Side("eager-solo", split, True, turn)
    return tell(report, found, told)


def tell(report: record.Report, found: dict[str, list[list[dict[str, float]]]], told: Any) -> int:
    """All figures and bars."""
    for name, turns in found.items():
        report.rows.append(record.figure(f"{name}: steps/s", [rate(said) for said in turns]))
        report.rows.append(record.figure(f"{name}: loss", [said[0]["loss"] for said in turns]))
    late, calm = found["eager-solo, a worker late"], found["eager-solo"]
    shares = [rate(one) / ideal(other) for one, other in zip(late, calm, strict=True)]
    report.rows.append(record.figure("eager-solo, a worker late, of the ideal", shares))
    report.bar("eager-solo, a worker late, of the ideal", report.rows[-1].median, at_least=0.95)
    waits = found["all-reduce, a worker late"]
    gains = [rate(one) / rate(other) for one, other in zip(late, waits, strict=True)]
    report.rows.append(record.figure("a worker late: eager-solo / all-reduce, steps/s", gains))
    losses = [one[0]["loss"] / other[0]["loss"] for one, other in zip(late, waits, strict=True)]
    report.rows.append(record.figure("a worker late: eager-solo / all-reduce, loss", losses))
    report.bar("a worker late: eager-solo / all-reduce, loss", report.rows[-1].median, at_most=1.02)
    return report.show(told)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
