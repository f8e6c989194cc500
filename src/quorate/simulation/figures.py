"""What a simulated run comes to in figures, of the stretch in which all workers are at work and warm. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quorate.simulation.played import Played

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1
"""The first steps that are no measure of the others: so many, but no more than this share; as in reports."""

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One row of the table. Rates are per simulated second."""

    rounds_per_second: float | None
    """Means that were formed; under gossip, steps of every worker; None where there was none in the stretch."""
    steps_per_second: float
    """Of all workers together."""
    no_wait_share: float
    """Of what the same workers would do if nobody ever waited and exchanges cost nothing."""
    contributors: float | None
    """Workers with something in a round, in the mean."""
    staleness_p50: float | None
    """Of the contributions in rounds; None under gossip."""
    staleness_p95: float | None
    waiting_share: float
    """Of the time of steps, what was waiting for others to come."""
    communication_share: float
    """Likewise for bytes to move, beyond what was hidden behind computing."""
    bytes_per_step: float
    """Sent, in a step of one worker, in the mean over the whole run."""
    coding_per_step: float = 0.0
    """Seconds in which a worker encodes and decodes, likewise."""
    step_p50: float
    """Seconds, from one step's end to the next one's."""
    step_p95: float
    seconds: float
    """That the stretch lasts."""


def figures_of(played: Played, workers: int, steps: int) -> Figures:
    """Of `workers` that took `steps`, the fastest of them."""
    rank = np.asarray(played.rank)
    begin, arrive, last, done, end = (
        np.asarray(column) for column in (played.begin, played.arrive, played.last, played.done, played.end)
    )
    since, until = _stretch(rank, end, workers, min(WARM_UP_STEPS, int(WARM_UP_SHARE * steps)))
    share = _inside(begin, end, since, until)
    total = float((share * (end - begin)).sum())
    busy = np.bincount(rank, share * (arrive - begin + end - done), workers)
    taken = np.bincount(rank, share, workers)
    waited = np.clip(np.minimum(done, last) - arrive, 0.0, None)
    seconds = until - since
    rate = float(share.sum()) / seconds
    ideal = float((taken[busy > 0.0] / busy[busy > 0.0]).sum())
    inside = [one for one in played.rounds if since < one.time <= until]
    stalenesses: Counter[int] = Counter()
    for one in inside:
        stalenesses.update(one.stalenesses)
    is_gossip = played.contributors is not None
    lengths = (end - begin)[share > 0.0]
    return Figures(
        rounds_per_second=rate / workers if is_gossip else len(inside) / seconds if inside else None,
        steps_per_second=rate,
        no_wait_share=rate / ideal if ideal else 1.0,
        contributors=sum(one.contributors for one in inside) / len(inside) if inside else played.contributors,
        staleness_p50=quantile(stalenesses, 0.5),
        staleness_p95=quantile(stalenesses, 0.95),
        waiting_share=float((share * waited).sum()) / total,
        communication_share=float((share * (done - arrive - waited)).sum()) / total,
        bytes_per_step=played.bytes_out / len(rank),
        coding_per_step=played.coding / len(rank),
        step_p50=float(np.quantile(lengths, 0.5)),
        step_p95=float(np.quantile(lengths, 0.95)),
        seconds=seconds,
    )


def _stretch(rank: NDArray[np.int64], end: Column, workers: int, warm_up: int) -> tuple[float, float]:
    """From when the last worker has warmed up (else from the beginning) until the first one's last step ends."""
    order = np.lexsort((end, rank))
    firsts = np.searchsorted(rank[order], np.arange(workers))
    counts = np.bincount(rank, minlength=workers)
    until = float(end[order][firsts + counts - 1].min())
    if not warm_up:
        return 0.0, until
    since = float(end[order][firsts + np.minimum(warm_up, counts) - 1].max())
    return (since, until) if since < until else (0.0, until)


def _inside(begin: Column, end: Column, since: float, until: float) -> Column:
    """Which share of each step lies in the stretch."""
    inside = np.clip(np.minimum(end, until) - np.maximum(begin, since), 0.0, None)
    length = end - begin
    found: Column = np.divide(inside, length, out=np.zeros_like(inside), where=length > 0.0)
    return found


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The least number that this share of all are not above; None where there are none."""
    total, seen = sum(counts.values()), 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= share * total:
            return float(number)
    return None
