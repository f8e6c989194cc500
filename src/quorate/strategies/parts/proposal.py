"""Which strategy brings a training on fastest, by what its workers have measured: a pure function.

The unit is the seconds for the progress of one fresh gradient, as in `rounds.choice.choosing`. Noise B is in gradients
of one worker, and one step of staleness costs a share a of progress where there is no noise. With mean work w_i of each
worker, the seconds x that an exchange adds to a step, and the seconds s of a synchronous step,

    all-reduce:   s / P
    local steps:  (max w_i + x / H) / P  (1 + a (H - 1) / 2 (P - 1) / (P + B))
    quorum of k:  the cost of its replay, with the workers' steps in order.

Within H local steps a replica lacks the (P - 1) / P of the gradients that others compute, for (H - 1) / 2 steps on
average, which counts as staleness. Uneven steps of workers even out between two means, so the slowest mean counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.rounds.choice.choosing import cost, forecast, quorums

ALL_REDUCE, LOCAL = "all-reduce", "local-sgd"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The measures of a run since its last pause."""

    work: Sequence[Sequence[float]]
    """The seconds of each worker's newest steps, without waits."""
    exchange: float
    """The seconds that an exchange adds to a step, without waits for slow workers."""
    step: float
    """The seconds of a step in which all workers meet."""
    noise: float
    """B; infinite where gradients are nothing but noise."""


@dataclass(frozen=True)
class Proposal:
    """A strategy with its settings, and the reason in words."""

    strategy: str
    why: str


def costs(seen: Seen, *, local_steps: int, lateness: float) -> dict[str, float]:
    """Return the seconds per fresh gradient under each strategy."""
    size = len(seen.work)
    slowest = max(map(statistics.fmean, seen.work))
    late = lateness * (local_steps - 1) / 2 * (size - 1) / (size + seen.noise)
    known = {ALL_REDUCE: seen.step / size, LOCAL: (slowest + seen.exchange / local_steps) / size * (1 + late)}
    for wait_for in quorums(size)[:-1]:
        expected = forecast(seen.work, wait_for, seen.exchange)
        known[f"quorum:wait_for={wait_for}"] = cost(expected, size, seen.noise, lateness)
    return known


def propose(seen: Seen, now: str, *, local_steps: int, lateness: float, margin: float) -> Proposal:
    """Return the strategy of the lowest cost; that of `now` if no other one's is lower by the share `margin`."""
    known = costs(seen, local_steps=local_steps, lateness=lateness)
    best = min(known, key=lambda strategy: known[strategy])
    if known[best] > known[now] * (1 - margin):
        best = now
    means = list(map(statistics.fmean, seen.work))
    why = (
        f"a step takes {seen.step:.3g} s, of which workers compute {min(means):.3g} to {max(means):.3g} s and exchange "
        f"{seen.exchange:.3g} s; the noise is {seen.noise:.3g} gradients. For the progress of a gradient "
        + ", ".join(f"{name} needs {known[name]:.3g} s" for name in dict.fromkeys((now, best)))
    )
    return Proposal(f"{best}:sync_every={local_steps}" if best == LOCAL else best, why)
