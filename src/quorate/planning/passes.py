"""The duration of the passes of a layout's stages for one micro-batch, and of a pipeline of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.model import Model, Stage
from quorate.sharding.stages.clock import bubble_by_formula, clock
from quorate.sharding.stages.orders import order, peaks


@dataclass(frozen=True)
class Passes:
    """Seconds of each stage, for one micro-batch."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]

    def of(self, stages: Sequence[int]) -> float:
        """Return the seconds of all three passes, of a worker that has `stages`."""
        return self.forward_of(stages) + self.backward_of(stages)

    def forward_of(self, stages: Sequence[int]) -> float:
        """Return the seconds of the forward passes of a worker that has `stages`."""
        return sum(self.forward[stage] for stage in stages)

    def backward_of(self, stages: Sequence[int]) -> float:
        """Return the seconds of both parts of the backward passes."""
        return sum(self.backward[stage] + self.weight[stage] for stage in stages)


@dataclass(frozen=True)
class Played:
    """A step of a pipeline, or of successive passes."""

    seconds: float
    bubble: float
    """The share of time in which a worker does not compute, on average."""


def computing(stages: Sequence[Stage], examples: float) -> Passes:
    """Return the passes of computing alone."""
    return _passes(
        tuple(fixed + each * examples for fixed, each in zip(stage.fixed, stage.passes, strict=True))
        for stage in stages
    )


def with_sums(passes: Passes, stages: Sequence[Stage], cluster: Cluster, examples: float) -> Passes:
    """Add the sums over the tensor axis, for which its workers wait: twice a block, in each pass."""
    tensor = stages[0].tensor
    if tensor == 1:
        return passes

    def seconds(sums: tuple[int, float]) -> float:
        count, nbytes = sums
        return count * cluster.all_reduce(nbytes * examples / count, tensor, 1) if count else 0.0

    forward = [seconds(stage.sums) for stage in stages]
    again = [seconds(stage.sums_again) for stage in stages]
    return _passes(
        (passes.forward[n] + forward[n], passes.backward[n] + forward[n] + again[n], passes.weight[n])
        for n in range(len(stages))
    )


def with_gathers(passes: Passes, stages: Sequence[Stage], layout: Layout, model: Model, cluster: Cluster) -> Passes:
    """Add the gathers of ZeRO 3: in parallel with passes where exchanges overlap, else before them.

    In a pipeline not every pass gathers (see `gathers`); their seconds are spread evenly.
    """
    if layout.zero != 3:
        return passes
    seconds = []
    for number, stage in enumerate(stages):
        forward, backward, weight = passes.forward[number], passes.backward[number], passes.weight[number]
        share = gathers(layout) / (2 * layout.microbatches)
        work = share * model.gathering * stage.numbers
        gather = share * cluster.gather(model.gathered_each * stage.numbers, layout.shards, layout.tensor)
        if cluster.hides(layout.shards, layout.tensor):
            seconds.append((max(forward, gather) + work, max(backward, gather - weight) + work, weight))
        else:
            seconds.append((forward + gather + work, backward + gather + work, weight))
    return _passes(seconds)


def gathers(layout: Layout) -> int:
    """Return how often a stage is gathered in a step.

    Without a pipeline, ZeRO 3 gathers for each pass. In a pipeline it does not for a pass after a backward pass, as
    parameters stay gathered after these: in any order, one gather more than there are micro-batches.
    """
    if layout.zero != 3:
        return 1
    if not layout.schedule:
        return 2 * layout.microbatches
    return layout.microbatches + 1


def _passes(seconds: Iterable[Sequence[float]]) -> Passes:
    forward, backward, weight = zip(*seconds, strict=True)
    return Passes(forward, backward, weight)


def played(layout: Layout, passes: Passes, send: float, *, exact: bool, cores: float | None = None) -> Played:
    """Return a step of passes, on so many cores (None: each worker has one); not `exact`: by formula, for equal
    stages."""
    if not layout.schedule:
        return Played(layout.microbatches * passes.of((0,)), 0.0)
    asked = (layout.schedule, layout.stages, layout.chunks, layout.microbatches)
    if exact:
        return _clocked(*asked, passes, send, cores)
    bubble = bubble_by_formula(*asked)
    busy = max(passes.of(stages) for stages in layout.owned) * layout.microbatches
    return Played(busy / (1 - bubble) + 2 * (layout.stages - 1) * send, bubble)


@lru_cache(maxsize=4096)
def _clocked(
    schedule: str, workers: int, chunks: int, microbatches: int, passes: Passes, send: float, cores: float | None
) -> Played:
    asked = _order(schedule, workers, chunks, microbatches)
    step = clock(asked, passes.forward, passes.backward, passes.weight, send, cores=cores)
    return Played(step.seconds, sum(step.bubble) / workers)


_order = lru_cache(maxsize=32)(order)


@lru_cache(maxsize=4096)
def _peaks(schedule: str, workers: int, chunks: int, microbatches: int) -> tuple[int, ...]:
    return peaks(_order(schedule, workers, chunks, microbatches))


def most_held(layout: Layout, worker: int, *, exact: bool) -> int:
    """Return the most activations of one stage for one micro-batch that a worker of a pipeline holds.

    Not `exact`: by formula, never less than `orders.peaks`.
    """
    workers, chunks, microbatches = layout.stages, layout.chunks, layout.microbatches
    if not layout.schedule:
        return 1
    if exact:
        return _peaks(layout.schedule, workers, chunks, microbatches)[worker]
    limits = {
        "1f1b": workers - worker,
        "interleaved-1f1b": (chunks + 1) * workers - 1 - 2 * worker,
        "interleaved-zero-bubble": chunks * workers,
        "zbv": 2 * workers,
        "dualpipev": 2 * workers + 1,
    }
    return min(chunks * microbatches, limits.get(layout.schedule, chunks * microbatches))
