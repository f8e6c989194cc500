"""What workers hand in of the clients that they have played, and the mean way that comes of it."""

from __future__ import annotations

import math

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.telling import tell
from quorate.core.vectors import Flat
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings
from quorate.strategies.parts.masked_sums import Masked, masked_sum
from quorate.strategies.parts.privacy import noised
from quorate.strategies.parts.several_vectors import apart, of_worker, summed, together


def handed_in(worker: Worker, strategy: FederatedSettings) -> tuple[Flat, float] | None:
    """What this worker gives to the mean that ends a round, and its weight; a client in the middle of its turn ends it.

    With noise: what it gives to a sum of known weights. Where sums are masked, nothing here.
    """
    work: ClientWork = worker.state
    if strategy.secure:
        return None
    work.end_turn(worker, strategy, is_early=True)
    if strategy.noise == 0:
        return work.mean_way()
    total, weight = _private(worker, strategy)
    turn = work.turn
    told = (0.0, 0.0) if turn is None else (float(turn.clients), float(turn.drawn))
    return together([total / max(1.0, weight)], [*told, *of_worker(worker, weight)]), weight


def mean_way(worker: Worker, strategy: FederatedSettings, one: Mean) -> Flat | None:
    """The mean way of all clients of a round, from the mean of what workers have handed in.

    None for a round that is left out: the next one begins where it began.
    """
    if strategy.noise == 0:
        return one.mean
    (mean,), (clients, drawn, *shares) = apart(one.mean, worker.parameters.layout, 1)
    weight = summed(shares)
    return _of_private_sum(worker, mean * weight, weight, (clients, drawn), strategy)


def masked_mean_way(worker: Worker, strategy: FederatedSettings) -> Flat | None:
    """The mean way of a round whose sums are masked; None where nobody has handed in, and for one that is left out.

    All workers ask together, as all rest.
    """
    work: ClientWork = worker.state
    work.end_turn(worker, strategy, is_early=True)
    if strategy.noise > 0:
        total, weight = _private(worker, strategy)
        mine: tuple[Flat, float] | None = (total, weight) if weight else None
    else:
        mine = None if work.total is None else (work.total, work.weight)
    turn = work.turn
    told = (0, 0) if turn is None else (turn.clients, turn.drawn)
    found = masked_sum(worker, mine, told, dropouts=strategy.secure_dropouts, bits=strategy.secure_bits)
    if found is None:
        return None
    if not isinstance(found, Masked):
        _left_out(worker, found)
        return None
    if strategy.noise == 0:
        return found.total / found.weight
    return _of_private_sum(worker, found.total, found.weight, found.told, strategy)


def _private(worker: Worker, strategy: FederatedSettings) -> tuple[Flat, float]:
    """The sum of this worker's ways with its share of the noise, and how many of its clients were drawn."""
    work: ClientWork = worker.state
    total = work.point * 0.0 if work.total is None else work.total
    turn = work.turn
    if turn is None:
        return total, 0.0
    deviation = strategy.noise * strategy.clip * math.sqrt(turn.own / turn.drawn)
    seed = None if strategy.noise_seed is None else [strategy.noise_seed, turn.round, worker.rank]
    return noised(total, deviation, seed), float(turn.own)


def _of_private_sum(
    worker: Worker, total: Flat, weight: float, told: tuple[float, float], strategy: FederatedSettings
) -> Flat | None:
    """The sum over the number of clients that is drawn on average: how many they were is hidden as well.

    Where a worker is missing, so is its share of the noise: the round is left out, by all alike.
    """
    clients, drawn = told
    missing = round(drawn) - round(weight)
    if missing > 0:
        of_all = f"{missing} of {round(drawn)} clients are missing, and their part of the noise"
        _left_out(worker, f"a round is left out: {of_all}")
        return None
    return total / (strategy.sampled * clients)


def _left_out(worker: Worker, sentence: str) -> None:
    tell(f"quorate: rank {worker.rank}: {sentence}\n")
    worker.state.go_on_at(worker, worker.state.point)
