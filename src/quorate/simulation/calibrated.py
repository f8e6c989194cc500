"""A simulation's parameters from a run's records: its workers' times, and the cost of their exchanges.

Times are kept step by step (`busy.Recorded`). Of exchanges one number is kept, the latency of a message. It is the
mean, over the run, of the seconds of an exchange in which only messages were missing, divided by the messages that
follow each other in it. It holds for vectors of the run's own size, so it includes no bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import topology_of
from quorate.records.rows import Step
from quorate.report.figures.lateness import side_by_side
from quorate.report.figures.throughput import batch_of
from quorate.report.reading.folders import find_run
from quorate.report.reading.run import RunRecords, read_run
from quorate.rounds.terms import Agreed
from quorate.simulation.busy import Recorded
from quorate.simulation.calls import CountedCalls
from quorate.simulation.links import Links
from quorate.simulation.models import ExchangeTimes, Questions, RoundTimes, Times, settings_of, times_of
from quorate.simulation.neighbours import Graph

LEAST_STEPS = 20
"""Least number of steps of every worker, without the first ones."""
_WAITED = 1e-4
"""Seconds from which on a step has waited."""
_OUTLIERS = 0.02
"""The share of the longest exchanges that is left out: a worker that was stopped is no exchange."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The results from one run."""

    run: RunRecords
    times: Times
    settings: Mapping[str, object]
    workers: int
    steps: int
    """Steps of the worker that took most, without the first ones."""
    parameters: int
    seed: int
    busy: Recorded
    undelayed: Recorded
    """`busy` without injected delays: pace and imbalance."""
    links: Links
    examples: int | None
    pace: str | None
    imbalance: str | None

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.run.folder


def calibrated(name: str, seed: int | None = None) -> Calibration:
    """Return the calibration by the run in the folder `name`, or of that name.

    `seed` draws further workers (None: the run's). Raises `ConfigurationError` where there is no such run, or none from
    whose times a simulation can be calibrated.
    """
    folder = find_run(name)
    run = read_run(folder)
    if run.newcomers:
        raise ConfigurationError(f"workers joined the run in {folder}, but a simulation has a fixed number of workers")
    distributed = next((rank.distributed for rank in run.ranks if rank.distributed), {})
    strategy = run.about.get("strategy") or distributed.get("strategy")
    if not isinstance(strategy, str):
        raise ConfigurationError(f"the records in {folder} do not say which strategy was used")
    said = distributed.get("settings") or run.about.get("settings") or {}
    if said.get("compress", "none") != "none":
        raise ConfigurationError(
            f"the run in {folder} had compress={said['compress']}, but the cost of exchanges can only be "
            "estimated from whole vectors"
        )
    settings = {key: value for key, value in said.items() if key in settings_of(strategy)}
    times = times_of(strategy, settings)
    steps = run.after(run.usual_warm_up)
    least = min(map(len, steps.values()), default=0)
    if len(steps) < run.size or least < LEAST_STEPS:
        raise ConfigurationError(
            f"the run in {folder} is too short to learn from: every worker needs {LEAST_STEPS} steps after the first "
            f"ones, and there are {least if len(steps) == run.size else 'workers without any'}"
        )
    parameters = distributed.get("parameters")
    if not isinstance(parameters, int) or parameters < 0:
        raise ConfigurationError(f"the records in {folder} do not say how many parameters there are")
    own = next((rank.start.get("seed") for rank in run.ranks), None)
    drawn = own if isinstance(own, int) else 0
    places = [number - 1 for number in side_by_side(steps)] if run.size > 1 else list(range(least))
    everything = {rank.rank: rank.steps for rank in run.ranks}
    return Calibration(
        run=run,
        times=times,
        settings=settings,
        workers=run.size,
        steps=max(len(rank.steps) for rank in run.ranks),
        parameters=parameters,
        seed=drawn,
        busy=_recorded(everything, places, drawn if seed is None else seed, without_delay=False),
        undelayed=_recorded(everything, places, drawn if seed is None else seed, without_delay=True),
        links=_links(run, times, steps, drawn),
        examples=batch_of(run),
        pace=_text(run.about, "pace"),
        imbalance=_text(run.about, "imbalance"),
    )


def _text(about: Mapping[str, Any], key: str) -> str | None:
    value = about.get(key)
    return value if isinstance(value, str) else None


def _recorded(
    steps: Mapping[int, Sequence[Step]], places: Sequence[int], seed: int, *, without_delay: bool
) -> Recorded:
    ranks = range(len(steps))
    return Recorded(
        first=[
            [max(0.0, step.arrive - step.begin - without_delay * step.delay) for step in steps[rank]] for rank in ranks
        ],
        last=[[max(0.0, step.end - _blocked_until(step)) for step in steps[rank]] for rank in ranks],
        drawn=places,
        seed=seed,
    )


def _blocked_until(step: Step) -> float:
    """Return the time at which its exchange ended."""
    return min(step.end, step.arrive + step.encode + step.wait)


def _links(run: RunRecords, times: Times, steps: Mapping[int, Sequence[Step]], seed: int) -> Links:
    if run.size == 1:
        latencies: list[float] = []
    elif isinstance(times, RoundTimes):
        latencies = list(_of_rounds(run, times, seed))
    elif isinstance(times, ExchangeTimes):
        latencies = list(_of_neighbours(times, steps, run.size))
    else:
        latencies = list(_of_meetings(steps, run.size))
    kept = sorted(latencies)[: max(1, math.ceil(len(latencies) * (1 - _OUTLIERS)))]
    latency = sum(kept) / len(kept) if kept else 0.0
    return Links(text=f"as in {run.folder}", latency=latency, bandwidth=math.inf, is_mesh=True)


def _of_meetings(steps: Mapping[int, Sequence[Step]], size: int) -> Iterator[float]:
    """Yield latencies where all meet: from the last arrival to each end, by 2 (P - 1) messages of a ring."""
    for there in side_by_side(steps).values():
        if all(step.wait > _WAITED or step.bytes_out for step in there.values()):
            last = max(step.arrive for step in there.values())
            until = sum(_blocked_until(step) for step in there.values()) / size
            yield max(0.0, until - last) / (2 * (size - 1))


def _of_rounds(run: RunRecords, times: RoundTimes, seed: int) -> Iterator[float]:
    """Yield latencies from the call that started a round until each caller has its result: two messages. There is one
    more where the last caller is not the leader, and one more where the waiting worker is not."""
    agreed = times.agreed(run.size, seed)
    for merged in run.merged():
        calls = [
            (contribution.step.arrive, contribution.rank, contribution.step)
            for contribution in merged.gradients
            if not contribution.staleness
        ]
        calls.sort(key=lambda call: call[:2])
        starts = _starting(agreed, merged.round.number, calls, run.size)
        if starts is None:
            continue
        arrive, caller, _ = starts
        for _, rank, step in calls:
            if step.wait > _WAITED:
                yield max(0.0, _blocked_until(step) - arrive) / (2 + (caller != 0) + (rank != 0))


def _starting(
    agreed: Agreed, number: int, calls: Sequence[tuple[float, int, Step]], size: int
) -> tuple[float, int, Step] | None:
    """Return the call that started round `number`; None where it is not among `calls`."""
    if agreed.wait_for == "designated" and len(calls) < size:
        drawn = CountedCalls(agreed, number - 1).drawn
        return next((call for call in calls if call[1] == drawn), None)
    quorum = size if agreed.wait_for == "designated" else agreed.quorum
    return calls[quorum - 1] if quorum <= len(calls) else None


def _of_neighbours(times: ExchangeTimes, steps: Mapping[int, Sequence[Step]], size: int) -> Iterator[float]:
    """Yield latencies from the time when all neighbours of a worker had sent until it went on, where it had to wait.
    That is one message; or two, for a question and its answer."""
    if isinstance(times, Questions):
        yield from (step.wait / 2 for own in steps.values() for step in own if not times.overlap)
        return
    graph = Graph(topology_of(times.topology, size), size)
    for number, there in side_by_side(steps).items():
        sources = graph.round(number - 1).sources
        for rank, step in there.items():
            sent = [there[peer].begin if times.overlap else there[peer].arrive for peer in sources[rank]]
            if sent and not times.bound and step.wait > _WAITED:
                yield max(0.0, _blocked_until(step) - max(sent))
