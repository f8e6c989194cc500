"""The predicted time and memory of a step of a layout.

The step is a pipeline's (`sharding.stages.clock`), or its successive passes; before it parameters are gathered, after
it gradients are reduced over shards and replicas, and the optimizer steps. Exchanges that overlap hide behind the
passes of one micro-batch: a gather behind the forward pass, sums behind the backward pass. With ZeRO 3 each pass of
each micro-batch gathers, except, in a pipeline, those after a backward pass. Bytes held are those of
`sharding.memory`, of the worker that holds most.

Replicas form a mean of gradients in each step, in a ring; what other strategies between them take is simulated
(`simulation.between_replicas`). Where one worker's timed steps varied, those of many end with the slowest
(`planning.waiting`). Not included are: uneven batches, effects of one kernel on another, reading data, and other
traffic in the network. Workers that share cores take no less than all their seconds over the cores, and pipelines are
simulated on so many. Where they use all of a host's cores, exchanges on it are not hidden: they are copied in memory,
by the same cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.model import Model, Stage
from quorate.planning.waiting import slowest
from quorate.sharding.stages.clock import bubble_by_formula, clock
from quorate.sharding.stages.orders import order, peaks

_order = lru_cache(maxsize=32)(order)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction of one step."""

    layout: Layout
    seconds: float
    memory: float
    """Bytes on the worker that holds most, while it computes."""
    sent: float
    """Bytes that are sent by the worker that holds most parameters."""
    bubble: float
    """The share of a pipeline's passes in which a worker does not compute, on average."""
    parts: dict[str, float]
    """Seconds by cause: computing, idling in a pipeline, waiting along each axis, updating, waiting for cores, and for
    workers that are slower in this step."""
    alone: float = 0.0
    """Seconds of a replica before the exchange with others, without the update."""
    varies: float = 0.0
    """The part of its seconds that varies from step to step: all but exchanges."""
    hidden: float = 0.0
    """Seconds of its passes behind which an exchange with others may hide."""
    piece: float = 0.0
    """Numbers of a worker that are exchanged with other replicas."""

    @property
    def updating(self) -> float:
        """Seconds of the update, and of what is outside of passes."""
        return self.parts["updating"]


def predict(layout: Layout, model: Model, cluster: Cluster, *, exact: bool = True) -> Prediction:
    """Return the prediction of one layout; not `exact`: its pipeline by formula, for a first choice among many."""
    parts = _Step(layout, model, cluster, exact=exact)
    step = played(layout, parts.passes, parts.send, exact=exact)
    unsent = played(layout, parts.passes, 0.0, exact=exact) if parts.send else step
    busy = [_most(passes, layout) for passes in (parts.alone, parts.summed, parts.passes)]
    seconds = step.seconds + parts.sharded + parts.agreeing + parts.updating
    crowded = 0.0
    if cluster.cores:
        crowded = (
            parts if model.by_processor is None else _Step(layout, model.by_processor, cluster, exact=exact)
        ).crowded
    crowded = max(0.0, crowded - seconds)
    varies = unsent.seconds + parts.updating + crowded
    waiting = (slowest(model.spread, layout.workers) - 1) * varies
    held = range(layout.stages) if exact else (0, layout.stages - 1)
    return Prediction(
        layout=layout,
        seconds=seconds + crowded + waiting,
        memory=max(
            _memory(layout, model, parts.stages_of[worker], worker, parts.examples, exact=exact)
            for worker in {*held, parts.most}
        ),
        sent=_sent(layout, model, parts.stages_of[parts.most], parts.numbers, parts.examples),
        bubble=unsent.bubble,
        parts={
            "computing": busy[0],
            "bubble": max(0.0, unsent.seconds - busy[2]),
            "tensor": busy[1] - busy[0],
            "stages": max(0.0, step.seconds - unsent.seconds),
            "shards": parts.sharded + busy[2] - busy[1],
            "replicas": parts.agreeing,
            "updating": parts.updating,
            "cores": crowded,
            "waiting": waiting,
        },
        alone=step.seconds + parts.sharded + crowded,
        varies=varies,
        hidden=parts.hidden,
        piece=parts.numbers / layout.shards,
    )


class _Step:
    """The parts of a step of a layout, in seconds."""

    def __init__(self, layout: Layout, model: Model, cluster: Cluster, *, exact: bool) -> None:
        self._layout, self._model, self._cluster, self._exact = layout, model, cluster, exact
        stages = model.stages(layout.stages * layout.chunks, layout.tensor)
        self.examples = model.batch / (layout.replicas * layout.shards * layout.microbatches)
        self.alone = computing(stages, self.examples)
        self.summed = with_sums(self.alone, stages, cluster, self.examples)
        self.passes = with_gathers(self.summed, stages, layout, model, cluster)
        self.send = _send(stages, layout, cluster, self.examples)
        self.stages_of = [[stages[number] for number in owned] for owned in layout.owned]
        numbers = [model.numbers_of(some) for some in self.stages_of]
        self.most = max(range(len(numbers)), key=numbers.__getitem__)
        """The worker that holds most parameters, and their number."""
        self.numbers = numbers[self.most]
        owned = layout.owned[self.most]
        blocks = sum(len(stage.blocks) for stage in self.stages_of[self.most])
        self.sharded = _sharded(layout, model, cluster, self.numbers, blocks, self.passes, owned)
        self.inside = layout.workers // layout.replicas
        """Workers of a replica, and the ranks between two replicas."""
        # Pieces are there when they have been reduced over shards, so the pass is over by then.
        hides = layout.shards == 1 and cluster.of_axis("replicas").hides(layout.replicas, self.inside)
        self.hidden = self.passes.backward_of(owned) if hides else 0.0
        self.agreeing = _agreeing(layout, model, cluster, self.numbers, self.hidden)
        self.updating = model.outside + model.update * self.numbers / layout.shards

    @property
    def crowded(self) -> float:
        """The least seconds of all parts on the cores that workers share, with a pipeline simulated on so many.

        Exchanges of a host use its cores, too.
        """
        layout, cluster = self._layout, self._cluster
        in_passes = after = 0.0
        if not cluster.per_host:
            in_passes, after = _most(self.passes, layout) - _most(self.alone, layout), self.sharded + self.agreeing
        computed = sum(self.alone.of(stages) for stages in layout.owned) / layout.stages * layout.microbatches
        seconds = (computed + in_passes + after + self.updating) * cluster.crowd
        if self._exact and layout.schedule and cluster.crowd > 1:
            on_cores = played(layout, self.passes, self.send, exact=True, cores=layout.stages / cluster.crowd)
            seconds = max(seconds, on_cores.seconds + (after + self.updating) * cluster.crowd)
        return seconds * (self._model.crowding if cluster.crowd > 1 else 1.0)


def _most(passes: Passes, layout: Layout) -> float:
    return max(passes.of(stages) for stages in layout.owned) * layout.microbatches


def _send(stages: Sequence[Stage], layout: Layout, cluster: Cluster, examples: float) -> float:
    if layout.stages == 1:
        return 0.0
    output = max(stage.output for stage in stages[:-1]) * examples
    return cluster.of_axis("stages").send(output, layout.shards * layout.tensor, layout.tensor)


def _sharded(
    layout: Layout, model: Model, cluster: Cluster, numbers: float, blocks: int, passes: Passes, stages: Sequence[int]
) -> float:
    """Return the seconds of waiting for gathers (except those of ZeRO 3, which passes include) and sums over shards.

    Each of the `blocks` is gathered and reduced by itself.
    """
    if layout.shards == 1:
        return 0.0
    cluster = cluster.of_axis("shards")
    gather = cluster.gather(model.gathered_each * numbers, layout.shards, layout.tensor, blocks)
    reduce = cluster.gather(model.bytes_each * numbers, layout.shards, layout.tensor, blocks)
    hides = cluster.hides(layout.shards, layout.tensor)
    before = 0.0
    if layout.zero != 3:
        before = _waited(gather, passes.forward_of(stages), hides=hides) + model.gathering * numbers
    behind = _waited(reduce, passes.backward_of(stages), hides=hides) + model.reducing * numbers
    return before + layout.reduces * behind


def _agreeing(layout: Layout, model: Model, cluster: Cluster, numbers: float, hidden: float) -> float:
    """Return the seconds for which replicas wait for each other's pieces."""
    if layout.replicas == 1:
        return 0.0
    nbytes, stride = model.bytes_each * numbers / layout.shards, layout.workers // layout.replicas
    return max(0.0, cluster.of_axis("replicas").all_reduce(nbytes, layout.replicas, stride) - hidden)


def _waited(seconds: float, behind: float, *, hides: bool) -> float:
    return max(0.0, seconds - behind) if hides else seconds


def _memory(
    layout: Layout, model: Model, stages: Sequence[Stage], worker: int, examples: float, *, exact: bool
) -> float:
    saved, again = max(stage.saved for stage in stages), max(stage.again for stage in stages)
    microbatches = most_held(layout, worker, exact=exact)
    whole = model.bytes_each * model.numbers_of(stages) if layout.keeps_whole_gradients else 0
    nbytes = model.held(stages, layout.zero, layout.shards) + microbatches * saved * examples
    if layout.schedule and layout.zero == 3:  # behind a backward pass all is gathered, and less is saved
        nbytes = max(nbytes, model.held(stages, 2, layout.shards) + (microbatches - 1) * saved * examples)
    return nbytes + again * examples + whole


def _sent(layout: Layout, model: Model, stages: Sequence[Stage], numbers: float, examples: float) -> float:
    """Return the bytes in a step, of rings: a sum over n sends 2 (n - 1) / n of its input, a gather half."""
    each = examples * layout.microbatches
    sums = sum(2 * stage.sums[1] + stage.sums_again[1] for stage in stages) * each
    handed = 2 * len(stages) * stages[0].output * each if layout.stages > 1 else 0.0
    shards = numbers * (gathers(layout) * model.gathered_each + layout.reduces * model.bytes_each)
    piece = model.bytes_each * numbers / layout.shards
    replicas = 2 * _others(layout.replicas) * piece
    return 2 * _others(layout.tensor) * sums + handed + _others(layout.shards) * shards + replicas


def _others(size: int) -> float:
    return (size - 1) / size


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

    along = cluster.of_axis("tensor")

    def seconds(sums: tuple[int, float]) -> float:
        count, nbytes = sums
        return count * along.all_reduce(nbytes * examples / count, tensor, 1) if count else 0.0

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
    seconds, cluster = [], cluster.of_axis("shards")
    for number, stage in enumerate(stages):
        forward, backward, weight = passes.forward[number], passes.backward[number], passes.weight[number]
        share = gathers(layout) / (2 * layout.microbatches)
        work = share * model.gathering * stage.numbers
        nbytes, blocks = model.gathered_each * stage.numbers, len(stage.blocks)
        gather = share * cluster.gather(nbytes, layout.shards, layout.tensor, blocks)
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
