"""What rounds would be under another quorum: the workers' own times, as they were measured, gone through again.

Every worker repeats the times it has told, in their order, so that what was slow together stays together. The rules are
those of `rounds.calls`: whoever finds that no round has started since its step before calls, and waits; whoever finds
one goes on at once; a round starts with the call that makes the quorum, takes in all that is pending, and is there
after `exchange` seconds. Pure. Cost: some 3 µs for each gradient that is gone through.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Means over the rounds that were gone through."""

    seconds: float
    """From one round to the next."""
    gradients: float
    """In a round."""
    staleness: float
    """Of a gradient, in rounds."""

    @property
    def seconds_per_gradient(self) -> float:
        """Of all workers together."""
        return self.seconds / self.gradients


def forecast(work: Sequence[Sequence[float]], wait_for: int, exchange: float = 0.0, *, steps: int = 40) -> Forecast:
    """Of workers whose steps take `work` seconds each, by worker, under a quorum of `wait_for` of them.

    Each has at least one time; about `steps` of every worker are gone through.
    """
    size = len(work)
    assert 1 <= wait_for <= size
    ready = [(own[0], rank) for rank, own in enumerate(work)]
    heapq.heapify(ready)
    done, version = [0] * size, [0] * size
    callers: list[int] = []
    pending: list[int] = []
    newest, formed = 0, 0.0
    taken, age = 0, 0
    for _ in range(steps * size):
        if not ready:
            break
        now, rank = heapq.heappop(ready)
        pending.append(version[rank])
        done[rank] += 1
        if newest > version[rank]:
            version[rank] = newest
            heapq.heappush(ready, (max(now, formed) + _next(work, done, rank), rank))
            continue
        callers.append(rank)
        if len(callers) < wait_for:
            continue
        newest, formed = newest + 1, now + exchange
        taken += len(pending)
        age += sum(newest - 1 - one for one in pending)
        for one in callers:
            version[one] = newest
            heapq.heappush(ready, (formed + _next(work, done, one), one))
        pending, callers = [], []
    assert newest, "every step of every worker ends in a round"
    return Forecast(seconds=formed / newest, gradients=taken / newest, staleness=age / taken)


def _next(work: Sequence[Sequence[float]], done: Sequence[int], rank: int) -> float:
    own = work[rank]
    return own[done[rank] % len(own)]


def quorums(size: int, *, most: int = 8) -> list[int]:
    """Those worth a look among `size` workers, rising: all from 1 to `size`, or `most` of them by equal ratios."""
    if size <= most:
        return list(range(1, size + 1))
    return sorted({round(math.exp(math.log(size) * place / (most - 1))) for place in range(most)})
