"""Tuned parts of gradients: a tuner that leaves the default where it is the best, and what it gains in six cells.

- The null test: 200 tunings in which the default is the best of all choices, and each step has a noise of 7 %. A figure
  is the share that ends more than 1 % slower than the default; beside it that of a tuner which takes the best median.
- Six cells in the virtual world, whose network has latency: two virtual workers train a chain of tensors with the
  shapes of ResNet-50 (2,000 equal ones in one cell). Sizes, the usual parts and bandwidths are all divided by 100, so
  that times are those of the full sizes. Compute times have a noise of 2 %. The speed-up is that of the steps after the
  tuning over the same steps of a run without one, whose compute times are the same. With the bits of the parameters,
  and the measured over the predicted end of the exchange.
- With `--real`: two processes train chains of tensors in shared memory, balanced, with 2,000 tensors, and with one slow
  worker, with and without a tuning in turn. The overhead is what 200 tuned steps take over 200 others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
import torch  # noqa: E402
from workers import json_lines  # noqa: E402

import quorate  # noqa: E402
from quorate.observe.step_times import Timing  # noqa: E402
from quorate.records.records import Recorder, records_of, rows  # noqa: E402
from quorate.train import part_tuning  # noqa: E402
from quorate.tuning.best_parts import LinkCosts  # noqa: E402
from quorate.tuning.choices import Choice, Profile  # noqa: E402
from quorate.tuning.decision import median_speed_up  # noqa: E402
from quorate.tuning.proposals import Grid  # noqa: E402
from quorate.tuning.tuner import Tuner  # noqa: E402
from quorate.wire import current  # noqa: E402
from quorate.wire.virtual.network import Network  # noqa: E402
from quorate.wire.virtual.world import VirtualWorld  # noqa: E402
from tests.support.joined import joined  # noqa: E402

NOISE, TUNINGS, WORSE = 0.07, 200, 1.01
SCALE, AFTER, TUNED = 100, 25, 215
USUAL = {"part_bytes": (8 << 20) // SCALE, "first_part_bytes": (1 << 20) // SCALE}
GBIT = 1.25e8


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A network, tensors and compute times."""

    bandwidth: float
    latency: float
    tensors: int | None = None
    """The number of equal tensors of 16 KB; None: those of ResNet-50."""
    seconds: float = 0.15
    """The forward and backward pass."""
    slow: float = 1.0
    """The factor of the last worker's compute times."""

    def compute(self, rank: int, step: int) -> float:
        """The seconds of one step of one worker."""
        noise = random.Random(1_000_003 * rank + step).gauss(1.0, 0.02)
        return self.seconds * noise * (self.slow if rank else 1.0)


CELLS = {
    "balanced": Cell(bandwidth=25 * GBIT, latency=20e-6),
    "1 Gbit/s": Cell(bandwidth=GBIT, latency=50e-6),
    "100 Mbit/s": Cell(bandwidth=GBIT / 10, latency=50e-6),
    "10 Gbit/s, 2 ms": Cell(bandwidth=10 * GBIT, latency=2e-3),
    "2,000 tensors": Cell(bandwidth=10 * GBIT, latency=50e-6, tensors=2000, seconds=0.075),
    "one slow worker": Cell(bandwidth=10 * GBIT, latency=50e-6, slow=1.5),
}


class Chain(torch.nn.Module):
    """Tensors of given sizes whose gradients become ready one after the other, the last tensor's first."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tensors = torch.nn.ParameterList(torch.randn(size) / size for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A number that depends on all tensors."""
        for tensor in self.tensors:
            x = torch.tanh(x + (tensor * x).mean())
        return x


def resnet50() -> list[int]:
    """The sizes of the 161 tensors of ResNet-50, in the order of registration."""
    sizes, before = [64 * 3 * 49, 64, 64], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            for weights, outputs in (
                (before * width, width),
                (9 * width * width, width),
                (4 * width * width, 4 * width),
            ):
                sizes += [weights, outputs, outputs]
            if block == 0:
                sizes += [4 * before * width, 4 * width, 4 * width]
            before = 4 * width
    return [*sizes, 1000 * before, 1000]


def sizes_of(cell: Cell, quick: bool) -> list[int]:
    """The numbers of each tensor, divided by the scale; a quick run joins several tensors to one."""
    sizes = resnet50() if cell.tensors is None else [4096] * cell.tensors
    joined_ones = (4 if cell.tensors is None else 20) if quick else 1
    return [max(1, sum(sizes[place : place + joined_ones]) // SCALE) for place in range(0, len(sizes), joined_ones)]


def trained(
    sizes: Sequence[int], settings: dict[str, Any], steps: int, folder: Path, world: Any
) -> tuple[str, list[float]]:
    """Train in the virtual world; the digest of the parameters, and the virtual seconds of the last steps."""
    place = current.here()
    if world.rank == 0:
        place.context(Timing).recorder = Recorder(records_of(folder, 0))
    model, data = Chain(sizes), torch.Generator().manual_seed(world.rank)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, **USUAL, **settings)
    ends = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn((), generator=data)).square().backward()
        optimizer.step()
        ends.append(place.wire.clock.now())
    optimizer.finish()
    if world.rank == 0:
        place.context(Timing).recorder.close()  # type: ignore[union-attr]
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    return bits, [b - a for a, b in zip(ends[-AFTER:], ends[-AFTER + 1 :], strict=False)]


@dataclass(frozen=True)
class Measured:
    """The figures of a cell."""

    ratios: list[float]
    """Seconds of steps of the default over those of the same steps after the tuning."""
    accuracy: list[float]
    """Measured over predicted ends of the exchange."""
    are_equal: bool
    overhead: float
    why: str


def measured(cell: Cell, quick: bool) -> Measured:
    """Train with and without a tuning."""
    sizes, results = sizes_of(cell, quick), []
    network = Network(latency=cell.latency, bandwidth=cell.bandwidth / SCALE)
    row: dict[str, Any] = {}
    for settings in ({}, {"autotune": True}):
        with tempfile.TemporaryDirectory() as folder:
            task = partial(trained, sizes, settings, TUNED + AFTER, Path(folder))
            world = VirtualWorld(2, network=network, compute=cell.compute)
            (bits, seconds), (others, _) = world.run(joined(task))
            results.append((bits, others, seconds, world.stage.scheduler.now))
            row = next((row for row in rows(records_of(Path(folder), 0)) if row["kind"] == "tuned"), row)
    (plain, _, before, total), (*tuned, after, total_tuned) = results
    pairs = [(row["predicted"], row["measured"])]
    pairs += [(tried["predicted"], tried["measured"]) for tried in row["tried"] if tried["taken"]]
    return Measured(
        ratios=[a / b for a, b in zip(before, after, strict=True)],
        accuracy=[own / predicted for predicted, own in pairs if own is not None],
        are_equal={plain} == set(tuned),
        overhead=total_tuned / total - 1,
        why=row["why"][-1],
    )


def null_test(count: int) -> tuple[float, float]:
    """The share of tunings that end over 1 % slower than the default, which is the best, by our rule and by the best
    median of as many steps."""
    sizes = [4 * size for size in resnet50()]
    ready = [0.1 * (len(sizes) - place) / len(sizes) for place in range(len(sizes))]
    profile = Profile(ready, sizes, LinkCosts(5e-5, 1.25e9), skew=0.0)
    default = Choice(8 << 20, 1 << 20)
    noise, worse, worse_by_median = random.Random(0), 0, 0
    for _ in range(count):
        factors: dict[int, float] = {}
        tuner = Tuner(default, profile, Grid(default, profile), 189)
        while (trial := tuner.trial()) is not None:
            factor = factors.setdefault(trial.number, 1 + abs(noise.gauss(0, 0.03)))
            steps = [
                (noise.lognormvariate(0, NOISE), factor * noise.lognormvariate(0, NOISE)) for _ in range(trial.pairs)
            ]
            tuner.measured(trial, steps)
        number = tuner.outcome().number
        worse += number is not None and factors[number] > WORSE
        medians = {number: median_speed_up(tried.first + tried.last) for number, tried in enumerate(tuner.tried)}
        best = max(medians, key=lambda number: medians[number])
        worse_by_median += medians[best] > 1 and factors[best] > WORSE
    return worse / count, worse_by_median / count


REAL = {"balanced": (160, 1.0), "2,000 tensors": (2000, 1.0), "one slow worker": (160, 1.5)}


def worker(name: str, tunes: bool) -> None:
    """Train in a process; rank 0 prints the seconds of its steps."""
    count, slow = REAL[name]
    world = quorate.join()
    model = Chain([4096 if count > 1000 else 160_000] * count)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, autotune=tunes)
    ends = [time.perf_counter()]
    for step in range(TUNED + AFTER):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(torch.tensor(float(step % 7))).square()
        if world.rank and slow > 1:
            time.sleep((slow - 1) * (time.perf_counter() - begin))
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())
    optimizer.finish()
    if world.rank == 0:
        print(json.dumps([b - a for a, b in itertools.pairwise(ends)]), flush=True)


def real(name: str, turns: int) -> tuple[list[float], list[float]]:
    """Ratios of median steps after the tuning, and of all steps up to its end, default over tuned, turn by turn."""
    after, overhead = [], []
    for _ in range(turns):
        plain, tuned = (
            json.loads(next(json_lines(__file__, 2, "worker", name, words))) for words in ("plain", "tuned")
        )
        after.append(statistics.median(plain[-AFTER:]) / statistics.median(tuned[-AFTER:]))
        overhead.append(sum(tuned[:TUNED]) / sum(plain[:TUNED]) - 1)
    return after, overhead


def main() -> int:
    """Measure, and hold the figures against their bars."""
    parser = record.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--real", action="store_true", help="also in two processes, which takes minutes")
    arguments = parser.parse_args()
    part_tuning.SAMPLES = tuple((max(64, nbytes // SCALE), count) for nbytes, count in part_tuning.SAMPLES)
    report = record.Report("tuning", {"quick": arguments.quick, "scale": SCALE, "noise": NOISE})
    worse, by_median = null_test(TUNINGS)
    report.bar("null test: share of tunings over 1 % slower", worse, at_most=0.02)
    report.rows.append(record.figure("null test: that share by the best median", [by_median]))
    cells: dict[str, Measured] = {}
    for name, cell in CELLS.items():
        cells[name] = found = measured(cell, arguments.quick)
        print(f"{name}: {found.why}", flush=True)
        figure = record.figure(f"{name}: speed-up of a step", found.ratios)
        report.rows += [figure, record.figure(f"{name}: measured / predicted end", found.accuracy)]
        report.rows.append(record.figure(f"{name}: the tuned part of the run, more time", [found.overhead]))
        wanted = 1.05 if name in ("10 Gbit/s, 2 ms", "2,000 tensors") else 0.98
        report.bar(f"{name} (virtual): speed-up, lower end", figure.low, at_least=wanted)
    report.bar("bits with autotune = bits without", float(all(x.are_equal for x in cells.values())), at_least=1.0)
    off = max(abs(ratio - 1) for x in cells.values() for ratio in x.accuracy)
    report.bar("measured end of the exchange beside the predicted, off by", off, at_most=0.15)
    overheads: list[float] = []
    for name in REAL:
        ratios = None
        if arguments.real:
            ratios, more = real(name, 5)
            overheads += more
            report.rows.append(record.figure(f"{name}: speed-up in processes", ratios))
        low = None if ratios is None else report.rows[-1].low
        report.bar(f"{name} (processes): speed-up, lower end", low, at_least=1.05 if name == "2,000 tensors" else 0.98)
    report.bar("overhead of a tuning in processes", record.median_of(overheads), at_most=0.02)
    return report.show(arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], sys.argv[3] == "tuned")
    else:
        raise SystemExit(main())
