"""Contributions of workers for the clients that they have played, and the mean delta of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from quorate.buckets.flat import layout_of
from quorate.core.clients import ClientRound
from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.telling import tell
from quorate.core.vectors import Flat, Layout, empty_vector, header_in, pack
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings, noised
from quorate.strategies.parts.masked_sums import Masked, masked_sum


def handed_in(worker: Worker, strategy: FederatedSettings) -> tuple[Flat, float] | None:
    """This worker's contribution to the mean that ends a round, and its weight.

    A client in the middle of its turn ends it. With noise, the contribution to a sum of known weights; None if sums are
    masked.
    """
    work: ClientWork = worker.state
    if strategy.secure:
        return None
    _end_turn(worker, strategy)
    if strategy.noise == 0:
        return work.mean_delta()
    if (around := worker.client_round) is None:
        return None
    numbers = [float(around.clients), 1 / _noising_workers(worker), *of_worker(worker, 1.0)]
    return together([_private(worker, strategy, around)], numbers), 1.0


def mean_delta(worker: Worker, strategy: FederatedSettings, result: Mean) -> Flat | None:
    """Return the mean delta of all clients of a round, from the mean of the contributions of workers.

    None for a round that is left out: the next one begins where it began.
    """
    if strategy.noise == 0:
        return result.mean
    (mean,), (clients, share, *weights) = apart(result.mean, worker.parameters.layout, 1)
    workers = round(summed(weights))
    return _of_private_sum(worker, mean * workers, workers, round(clients), share * workers, strategy)


def masked_mean_delta(worker: Worker, strategy: FederatedSettings) -> Flat | None:
    """Return the mean delta of a round whose sums are masked; None without contributions, and if it is left out.

    All workers call it together, at a pause of all.
    """
    work: ClientWork = worker.state
    _end_turn(worker, strategy)
    around, own = worker.client_round, None
    if strategy.noise == 0:
        own = None if work.total is None else (work.total, work.weight)
    elif around is not None:
        own = _private(worker, strategy, around), 1.0
    numbers = (0 if around is None else around.clients, _noising_workers(worker))
    masked = masked_sum(worker, own, numbers, dropouts=strategy.secure_dropouts, bits=strategy.secure_bits)
    if masked is None:
        return None
    if not isinstance(masked, Masked):
        _left_out(worker, masked)
        return None
    if strategy.noise == 0:
        return masked.total / masked.weight
    workers = round(masked.weight)
    clients, noising = map(round, masked.numbers)
    return _of_private_sum(worker, masked.total, workers, clients, workers / noising, strategy)


def _end_turn(worker: Worker, strategy: FederatedSettings) -> None:
    """End the turn of a running client. Raises `ConfigurationError` for an edit that a hidden sum would not have."""
    work: ClientWork = worker.state
    if strategy.noise > 0 or strategy.secure:
        work.check_unedited(worker, "a sum of updates that are hidden leaves it out")
    work.end_turn(worker, strategy, is_early=True)


def _noising_workers(worker: Worker) -> int:
    """How many workers are expected to add noise to the next sum: all, or those that added noise to the newest one."""
    return worker.state.noising or worker.size


def _private(worker: Worker, strategy: FederatedSettings, around: ClientRound) -> Flat:
    """The sum of the deltas of this worker's clients, and the worker's share of the noise.

    Every worker adds a share, whether or not clients of its own were drawn: noise tells nobody how many there were.
    """
    work: ClientWork = worker.state
    total = Flat.zeros(work.point.layout) if work.total is None else work.total
    deviation = strategy.noise * strategy.clip / math.sqrt(_noising_workers(worker))
    seed = None if strategy.noise_seed is None else [strategy.noise_seed, around.number, worker.rank]
    return noised(total, deviation, seed)


def _of_private_sum(
    worker: Worker, total: Flat, workers: int, clients: int, share: float, strategy: FederatedSettings
) -> Flat | None:
    """The sum over the number of clients that are drawn on average, as the number of drawn ones is hidden, too.

    `share` is the variance of the noise in the sum, in units of what the settings ask for. Below 1 a worker's part is
    missing: all workers leave the round out, and the remaining ones add larger parts from the next round on.
    """
    work: ClientWork = worker.state
    expected, work.noising = _noising_workers(worker), workers
    if share < 0.999:
        _left_out(
            worker, f"a round is left out: {expected - workers} of {expected} workers are missing, and their noise"
        )
        return None
    return total / (strategy.sampled * clients)


def _left_out(worker: Worker, sentence: str) -> None:
    tell(f"quorate: rank {worker.rank}: {sentence}\n")
    worker.state.go_on_at(worker, worker.state.point)


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
        vector = Flat.zeros(layout)
        for place, x in zip(vector.segments(), segments[number * each : (number + 1) * each], strict=True):
            place.copy_(x)
        vectors.append(vector)
    return vectors, segments[-1].tolist()


def of_worker(worker: Worker, weight: float) -> list[float]:
    """Return the numbers behind a vector that `summed` needs of a worker with this weight in a mean."""
    return [weight if rank == worker.rank else 0.0 for rank in range(worker.size)]


def summed(shares: Sequence[float]) -> float:
    """The sum W of all weights w, from the weighted mean of `of_worker`: place r of that holds w_r^2 / W."""
    return float(sum(map(math.sqrt, shares)) ** 2)
