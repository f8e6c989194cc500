"""The figures of a simulated run, from the time in which all workers are active and warm. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quorate.simulation.played import Played

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1
"""The first steps that are not counted: so many, but no more than this share; as in reports."""

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One row of the table. Rates are per simulated second."""

    rounds_per_second: float | None
    """Means that were formed; under gossip, steps of every worker; None where there were none."""
    steps_per_second: float
    """For all workers together."""
    no_wait_share: float
    """Share of the steps that the same workers would make without waiting and with free exchanges."""
    contributors: float | None
    """Workers that contribute to a round, on average."""
    staleness_p50: float | None
    """Staleness of contributions to rounds; None under gossip."""
    staleness_p95: float | None
    waiting_share: float
    """Share of the time of steps that is waiting for other workers."""
    communication_share: float
    """Share of the time of steps that is transmission, beyond the part hidden behind computing."""
    bytes_per_step: float
    """Bytes sent in a step of one worker, on average over the whole run."""
    coding_per_step: float = 0.0
    """Seconds in which a worker encodes and decodes in a step, on average."""
    step_p50: float
    """Seconds, from one step's end to the next one's."""
    step_p95: float
    seconds: float
    """Duration of the measured time."""


def figures_of(played: Played, workers: int, steps: int) -> Figures:
    """Return the figures of `workers` of which the fastest has taken `steps`."""
    rank = np.asarray(played.rank)
    begin, arrive, last, done, end = (
        np.asarray(column) for column in (played.begin, played.arrive, played.last, played.done, played.end)
    )
    since, until = _era(rank, end, workers, min(WARM_UP_STEPS, int(WARM_UP_SHARE * steps)))
    share = _inside(begin, end, since, until)
    total = float((share * (end - begin)).sum())
    busy = np.bincount(rank, share * (arrive - begin + end - done), workers)
    taken = np.bincount(rank, share, workers)
    waited = np.clip(np.minimum(done, last) - arrive, 0.0, None)
    seconds = until - since
    rate = float(share.sum()) / seconds
    ideal = float((taken[busy > 0.0] / busy[busy > 0.0]).sum())
    inside = [formed for formed in played.rounds if since < formed.time <= until]
    stalenesses: Counter[int] = Counter()
    for formed in inside:
        stalenesses.update(formed.stalenesses)
    is_gossip = played.contributors is not None
    lengths = (end - begin)[share > 0.0]
    return Figures(
        rounds_per_second=rate / workers if is_gossip else len(inside) / seconds if inside else None,
        steps_per_second=rate,
        no_wait_share=rate / ideal if ideal else 1.0,
        contributors=sum(formed.contributors for formed in inside) / len(inside) if inside else played.contributors,
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


def _era(rank: NDArray[np.int64], end: Column, workers: int, warm_up: int) -> tuple[float, float]:
    """Return the time from which all workers are warm (else the beginning), and the first end of a last step."""
    order = np.lexsort((end, rank))
    firsts = np.searchsorted(rank[order], np.arange(workers))
    counts = np.bincount(rank, minlength=workers)
    until = float(end[order][firsts + counts - 1].min())
    if not warm_up:
        return 0.0, until
    since = float(end[order][firsts + np.minimum(warm_up, counts) - 1].max())
    return (since, until) if since < until else (0.0, until)


def _inside(begin: Column, end: Column, since: float, until: float) -> Column:
    """Return the share of each step inside the measured time."""
    inside = np.clip(np.minimum(end, until) - np.maximum(begin, since), 0.0, None)
    length = end - begin
    shares: Column = np.divide(inside, length, out=np.zeros_like(inside), where=length > 0.0)
    return shares


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the least number that reaches this share of all counts; None without counts."""
    total, seen = sum(counts.values()), 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= share * total:
            return float(number)
    return None
