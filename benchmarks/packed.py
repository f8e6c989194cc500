"""Are documents of unequal length that are packed into sequences of one length better than quorums and token budgets?

Functions of the standard library, the tokens of 16 in a step of each of 8 workers, go through two layers of a
transformer, forward and backward. Three ways to make batches of them are timed in turns, batch by batch, on one
thread. Padding counts as work, and only tokens of functions count as progress.

- `padded`: 16 functions in a random order, padded to the longest one;
- `token budgets`: functions of similar length, padded (`tokens_per_batch=` of `quorate.loader`);
- `packed`: functions in a random order behind each other, cut where a sequence is full, with `documents=` of
  `quorate.sparse_attention`, so that they do not see each other.

The workers are simulated with these times, synchronous, and for `padded` also in rounds of a quorum of 4. Messages take
no time, so that lateness by the data is all that is compared. Bars: packed sequences make more progress than each
other way.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch
import torch.nn.functional as F
from severe_imbalance import BATCH, QUORUMS, WORKERS, WORKLOAD
from torch import Tensor, nn

import quorate
from quorate.core.draws import mixed
from quorate.data.orders import BucketedBatches
from quorate.simulation.figures import figures_of
from quorate.simulation.links import links_from
from quorate.simulation.models import times_of
from quorate.simulation.played import Case
from quorate.workloads.stdlib_functions import StdlibFunctions

PADDED, BUDGETS, PACKED = "padded", "token budgets", "packed"
WIDTH, HEADS, LAYERS, BLOCK = 128, 4, 2, 32
SIMULATED = 400
"""Steps of a worker."""
_DRAWS = 0xFAC7


@dataclass(frozen=True)
class Batch:
    """Rows of functions, padded at their ends, or one row of several."""

    rows: int
    longest: int
    tokens: int
    """Without padding."""
    documents: tuple[int, ...] = ()


class Network(nn.Module):
    """Layers of a transformer on given vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(LAYERS))
        self.narrow = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor, documents: Sequence[int]) -> Tensor:
        for mixing, wide, narrow in zip(self.mixing, self.wide, self.narrow, strict=True):
            q, k, v = mixing(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            if documents:
                pattern = f"dense:block={BLOCK}"
                attended = quorate.sparse_attention(q, k, v, pattern, is_causal=True, documents=documents)
            else:
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attended.transpose(1, 2).flatten(2)
            x = x + narrow(F.gelu(wide(x)))
        return x


def batches(lengths: Sequence[int], count: int) -> dict[str, list[Batch]]:
    """Return `count` batches of each way, of about as many tokens."""
    order = torch.randperm(len(lengths)).tolist()
    budget = round(BATCH * statistics.fmean(lengths))
    cycled = itertools.cycle(lengths[index] for index in order)
    padded = [[next(cycled) for _ in range(BATCH)] for _ in range(count)]
    drawn = itertools.chain.from_iterable(iter(lambda: BucketedBatches(lengths, budget, shuffle=True), None))
    budgets = [[lengths[index] for index in batch] for batch in itertools.islice(drawn, count)]
    return {
        PADDED: [Batch(len(each), max(each), sum(each)) for each in padded],
        BUDGETS: [Batch(len(each), max(each), sum(each)) for each in budgets],
        PACKED: [
            Batch(1, budget, budget, tuple(each)) for each in itertools.islice(full_sequences(cycled, budget), count)
        ],
    }


def full_sequences(lengths: Iterator[int], length: int) -> Iterator[list[int]]:
    """Yield the lengths of functions in each sequence; one that is cut continues in the next sequence."""
    rest = 0
    while True:
        sequence: list[int] = []
        while (free := length - sum(sequence)) > 0:
            following = rest or next(lengths)
            sequence.append(min(free, following))
            rest = following - sequence[-1]
        yield sequence


def seconds(network: Network, batch: Batch) -> float:
    """The processor's seconds of a forward and a backward pass, which do not depend on what else the machine does."""
    x = torch.randn(batch.rows, batch.longest, WIDTH)
    network.zero_grad()
    begin = time.process_time()
    network(x, batch.documents).square().mean().backward()
    return time.process_time() - begin


@dataclass(frozen=True)
class Timed:
    """Steps of workers, each of which is one of those that were timed."""

    steps: Sequence[float]

    def before(self, rank: int, step: int) -> float:
        return self.steps[mixed(_DRAWS, rank, step) % len(self.steps)]

    def backward(self, rank: int, step: int) -> float:
        return 2 / 3 * self.before(rank, step)

    def after(self, rank: int, step: int) -> float:
        return 0.0


def progress(times: Sequence[float], tokens: float, strategy: str, settings: dict[str, Any]) -> tuple[float, float]:
    """Return tokens per second of all workers, and the share of what they would make without waiting."""
    links = links_from("0us:1000Gbit")
    case = Case(workers=WORKERS, steps=SIMULATED, parameters=1, busy=Timed(times), links=links)
    figures = figures_of(times_of(strategy, settings).play(case), WORKERS, SIMULATED)
    return tokens * figures.steps_per_second, figures.no_wait_share


def main() -> int:
    """Measure, and report."""
    options = record.arguments(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count, repeats = (24, 1) if options.quick else (128, 3)
    lengths = StdlibFunctions(**WORKLOAD).dataset(train=True).lengths.tolist()
    every, network = batches(lengths, count), Network()
    measured: dict[str, list[float]] = {name: [] for name in every}
    for name in every:
        seconds(network, every[name][0])  # warms up
    for number in range(count):
        first = number % len(every)
        names = [*every][first:] + [*every][:first]
        trials: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(repeats):
            for name in names:
                trials[name].append(seconds(network, every[name][number]))
        for name in names:
            measured[name].append(min(trials[name]))  # what else the machine did is not the batch's
        print(f"batch {number + 1} of {count}", file=sys.stderr)
    spread = statistics.stdev(lengths) / statistics.fmean(lengths)
    about = {"workers": WORKERS, "functions": BATCH, "tokens": every[PACKED][0].tokens, "spread of lengths": spread}
    report = record.Report("packed", about | {"batches": count, "repeats": repeats, "block": BLOCK})
    rates = {}
    cases: list[tuple[str, str, str, dict[str, Any]]] = [(name, name, "all-reduce", {}) for name in every]
    cases.insert(1, (f"{PADDED}, quorum of 4", PADDED, "quorum", dict(QUORUMS[2].settings)))
    for words, name, strategy, settings in cases:
        tokens = statistics.fmean(batch.tokens for batch in every[name])
        rates[words], share = progress(measured[name], tokens, strategy, settings)
        report.rows.append(record.figure(f"tokens per second, {words}", [rates[words]]))
        report.rows.append(record.figure(f"share of the rate without waiting, {words}", [share]))
    for name, times in measured.items():
        work = sum(batch.rows * batch.longest for batch in every[name])
        report.rows.append(record.figure(f"padding, {name}", [1 - sum(batch.tokens for batch in every[name]) / work]))
        report.rows.append(record.figure(f"ms of a step, {name}", [1e3 * each for each in times]))
        deviation = statistics.stdev(times) / statistics.fmean(times)
        report.rows.append(record.figure(f"spread of a worker's own steps, {name}", [deviation]))
    for words in rates:
        ratio = rates[PACKED] / rates[words]
        if words != PACKED:
            report.bar(f"tokens per second, packed / {words}", ratio, at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
