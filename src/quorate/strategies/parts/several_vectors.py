"""Several vectors over the parameters, and numbers, as one vector: so that they come to one mean together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from quorate.buckets.flat import layout_of
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, Layout, empty_vector, header_in, pack


def together(vectors: Sequence[Flat], numbers: Sequence[float]) -> Flat:
    """The vectors one after the other and the numbers behind them, in one that can be averaged: a copy.

    Equal layouts and counts give equal layouts. All vectors have the layout of the first.
    """
    named = [
        (f"{number}/{segment.name}", x)
        for number, vector in enumerate(vectors)
        for segment, x in zip(vector.layout.segments, vector.segments(), strict=True)
    ]
    wide = max((x.dtype for _, x in named if not x.is_complex()), key=lambda kind: kind.itemsize, default=torch.float32)
    named.append(("numbers", torch.tensor(numbers, dtype=wide)))
    into = empty_vector(layout_of(named, header=vectors[0].layout.header))
    pack([x for _, x in named], into)
    header_in(into).zero_()
    return into


def apart(vector: Flat, layout: Layout, count: int) -> tuple[list[Flat], list[float]]:
    """The `count` vectors over `layout` in `one`, and the numbers behind them: copies."""
    segments = vector.segments()
    each = len(layout.segments)
    vectors = []
    for number in range(count):
        pack(list(segments[number * each : (number + 1) * each]), vector := Flat.zeros(layout))
        vectors.append(vector)
    return vectors, segments[-1].tolist()


def of_worker(worker: Worker, weight: float) -> list[float]:
    """Return the numbers behind a vector that `summed` needs of a worker with this weight in a mean."""
    return [weight if rank == worker.rank else 0.0 for rank in range(worker.size)]


def summed(shares: Sequence[float]) -> float:
    """The sum W of all weights w, from the weighted mean of `of_worker`: place r of that holds w_r^2 / W."""
    return float(sum(map(math.sqrt, shares)) ** 2)
