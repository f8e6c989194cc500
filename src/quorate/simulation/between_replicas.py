"""The steps of a layout's replicas under any strategy and codec, by events.

A replica is one worker of the simulation: it computes for as long as the plan predicts, and exchanges its piece of the
numbers. The workers of one replica wait for each other in each step. How much steps vary is drawn from timed steps,
taken from the records of a run, or given as an imbalance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quorate.core.draws import uniform
from quorate.core.errors import ConfigurationError
from quorate.inject.imbalance import Imbalance, parse_imbalance
from quorate.planning.cluster import Cluster
from quorate.planning.prediction import Prediction
from quorate.simulation.busy import Drawn
from quorate.simulation.codes import codes_of
from quorate.simulation.grid import SimulatedArm
from quorate.simulation.links import Links
from quorate.simulation.models import EveryStep, LocalSteps
from quorate.simulation.played import Case

STEPS = 40
"""Simulated steps, at least."""
_STREAM = 0x91A2


@dataclass(frozen=True, kw_only=True)
class Variation:
    """How the seconds of workers vary; at most one of the three is given."""

    spread: Sequence[float] = ()
    """Seconds of timed steps over the usual ones, from the shortest on (`planning.waiting.spread_of`)."""
    recorded: Sequence[Sequence[float]] = ()
    """By recorded worker and step, seconds over the usual ones of all workers; further workers repeat them."""
    imbalance: str | None = None
    """The delay of each worker and step, as of `quorate run --imbalance`."""
    seed: int = 0

    def factor(self, worker: int, step: int) -> float:
        """Return the seconds of one recorded worker and step, over the usual ones."""
        own = self.recorded[worker % len(self.recorded)]
        return own[(step + worker // len(self.recorded)) % len(own)]

    def longest(self, replica: int, step: int, inside: int) -> float:
        """Return the factor of the slowest of the `inside` workers of a replica."""
        if self.recorded:
            return max(self.factor(worker, step) for worker in range(replica * inside, (replica + 1) * inside))
        if not self.spread:
            return 1.0
        place = uniform(self.seed, _STREAM, replica, step) ** (1 / inside) * (len(self.spread) - 1)
        below = math.floor(place)
        above = min(below + 1, len(self.spread) - 1)
        return float(self.spread[below] + (place - below) * (self.spread[above] - self.spread[below]))


@dataclass(frozen=True, kw_only=True)
class _Replicas:
    """The seconds of replicas: see `simulation.busy.Busy`."""

    alone: float
    varies: float
    hidden: float
    update: float
    inside: int
    delay: Imbalance | None
    variation: Variation

    def before(self, rank: int, step: int) -> float:
        """See `Busy`."""
        longest = self.variation.longest(rank, step, self.inside)
        late = 0.0
        if self.delay is not None:
            workers = range(rank * self.inside, (rank + 1) * self.inside)
            late = max(self.delay.delay(worker, step, self.alone) for worker in workers)
        return max(0.0, self.alone + self.varies * (longest - 1)) + late

    def backward(self, rank: int, step: int) -> float:
        """See `Busy`."""
        return min(self.hidden, self.alone)

    def after(self, rank: int, step: int) -> float:
        """See `Busy`."""
        return self.update


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """A layout with a strategy between its replicas."""

    prediction: Prediction
    contributors: float | None
    """Replicas whose gradients are in a mean, on average; None where no mean was formed in the simulated time."""
    staleness: float
    """The 95th percentile of the gradients' staleness, in rounds."""
    is_exact: bool
    """Whether each step has the mean of all gradients, on equal parameters, as without distribution."""


@dataclass(frozen=True, kw_only=True)
class BetweenReplicas:
    """The simulation of replicas on one cluster."""

    cluster: Cluster
    variation: Variation
    bytes_each: float
    """Bytes of an exchanged number."""
    _drawn: dict[Any, Drawn] = field(default_factory=dict, repr=False, compare=False)

    def agreed(self, prediction: Prediction, arm: SimulatedArm) -> Agreed:
        """Return the prediction of a layout with the strategy `arm` between its replicas, of which there are several.

        Raises `ConfigurationError` for settings that do not fit the number of replicas.
        """
        from quorate.simulation.figures import figures_of

        times, layout = arm.times, prediction.layout
        assert times is not None
        times.check(layout.replicas)
        busy, steps = self._busy(prediction), _steps(times)
        inside = layout.workers // layout.replicas
        case = Case(
            workers=layout.replicas,
            steps=steps,
            parameters=max(1, round(prediction.piece * self.bytes_each / 4)),
            busy=busy,
            links=links_between(self.cluster, layout.replicas, inside),
            seed=self.variation.seed,
        )
        if arm.reduction is not None:
            codes = codes_of(arm.reduction, case.parameters, case.workers, case.nbytes, arm.cost)
            case = replace(case, codes=codes)
        played = times.play(case)
        figures = figures_of(played, case.workers, steps)
        seconds = max(played.end) / steps if isinstance(times, LocalSteps) else case.workers / figures.steps_per_second
        usual = prediction.alone + prediction.updating
        computed = [busy.before(rank, step) for rank in range(case.workers) for step in range(min(steps, STEPS))]
        moving = figures.communication_share * seconds
        slower = max(0.0, sum(computed) / len(computed) + prediction.updating - usual)
        waiting = max(0.0, seconds - usual - moving)
        parts = {**prediction.parts, "replicas": moving, "waiting": max(waiting, min(slower, seconds))}
        usual_bytes = case.links.sent_by_all(case.nbytes, case.workers) / case.workers
        ring = 2 * (layout.replicas - 1) / layout.replicas * prediction.piece * self.bytes_each
        stale = figures.staleness_p95 or 0.0
        takes_all = figures.contributors is not None and figures.contributors > layout.replicas - 1e-6
        means = isinstance(times, EveryStep) or (times.kind == "rounds" and takes_all and not stale)
        return Agreed(
            prediction=replace(
                prediction,
                layout=replace(layout, strategy=arm.text),
                seconds=seconds,
                sent=prediction.sent - ring * (1 - figures.bytes_per_step / usual_bytes),
                parts=parts,
            ),
            contributors=figures.contributors,
            staleness=stale,
            is_exact=arm.reduction is None and means and "sync_every" not in arm.settings,
        )

    def _busy(self, prediction: Prediction) -> Drawn:
        layout, imbalance = prediction.layout, self.variation.imbalance
        inside = layout.workers // layout.replicas
        key = prediction.alone, prediction.varies, prediction.hidden, prediction.updating, layout.replicas, inside
        if key not in self._drawn:
            delays = None
            if imbalance is not None:
                delays = parse_imbalance(imbalance, seed=self.variation.seed, size=layout.workers)
            replicas = _Replicas(
                alone=prediction.alone, varies=prediction.varies, hidden=prediction.hidden,
                update=prediction.updating, inside=inside, delay=delays, variation=self.variation,
            )  # fmt: skip
            self._drawn[key] = Drawn(replicas, layout.replicas)
        return self._drawn[key]


def _steps(times: object) -> int:
    """Return steps of whole periods."""
    if not isinstance(times, LocalSteps):
        return STEPS
    count, unit = times.period()
    return math.ceil(STEPS / count) * math.ceil(count) if unit == "steps" else STEPS


def links_between(cluster: Cluster, replicas: int, stride: int) -> Links:
    """Return the links between the pieces of replicas that are `stride` ranks apart.

    All workers of a host send at the same time, so each group of pieces has its share of the port.
    """
    cluster = cluster.of_axis("replicas")
    if not cluster.per_host:  # workers that share cores are on one host, and others each on one of their own
        return Links(text="", latency=cluster.latency, bandwidth=cluster.bandwidth, per_host=0 if cluster.cores else 1)
    here = max(1, cluster.on_host // stride)
    if replicas <= here:
        return Links(text="", latency=cluster.inside_latency, bandwidth=cluster.inside_bandwidth)
    return Links(
        text="", latency=cluster.latency, bandwidth=cluster.bandwidth * here / cluster.on_host, per_host=here,
        inside_latency=cluster.inside_latency, inside_bandwidth=cluster.inside_bandwidth,
    )  # fmt: skip


def in_all(
    predictions: Sequence[Prediction], arms: Sequence[SimulatedArm], between: BetweenReplicas,
    acts_on_pieces: Mapping[str, bool],
) -> tuple[list[Agreed], dict[str, str]]:  # fmt: skip
    """Return each layout with each strategy that fits it, and by strategy why some do not.

    `acts_on_pieces`: by name, whether a strategy can act between replicas of several workers.
    """
    agreed, refused = [], dict[str, str]()
    for prediction in predictions:
        layout = prediction.layout
        if layout.replicas == 1:
            agreed.append(Agreed(prediction=prediction, contributors=1.0, staleness=0.0, is_exact=True))
            continue
        for arm in arms:
            if layout.workers > layout.replicas and not acts_on_pieces.get(arm.strategy, False):
                continue
            try:
                agreed.append(between.agreed(prediction, arm))
            except ConfigurationError as error:
                refused[arm.text] = str(error)
    return agreed, refused
