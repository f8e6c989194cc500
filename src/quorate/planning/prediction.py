"""How long a step of a layout takes, and what it holds, foreseen.

The step is a pipeline's (`sharding.stages.clock`), or without one its passes one after another; before it parameters
are gathered, behind it gradients are reduced over shards and replicas, and the optimizer steps. Exchanges that overlap
hide behind the passes of one micro-batch: a gather behind the forward pass, sums behind the backward pass. With
ZeRO 3 each pass of each micro-batch gathers, in a pipeline not those behind a backward pass. Bytes held are
`sharding.memory`'s, of the worker that holds most.

Where one worker's steps varied as they were timed, those of many end with the slowest (`planning.waiting`).
What is not in it: how even batches are, what one kernel does to another, reading data, the network of others. Workers
that share cores take no less than all their seconds over the cores, and pipelines are played on so many. Where they
take all of a host's cores, nothing hides that they exchange on it: it is copied in memory, by the same cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.model import Model, Stage
from quorate.planning.passes import Passes, computing, gathers, most_held, played, with_gathers, with_sums
from quorate.planning.waiting import NEIGHBOURS, SYNC_EVERY, waited

_HIDDEN = ("all-reduce", "d-psgd")
"""Strategies whose exchanges are under way while the backward pass runs."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Of one step."""

    layout: Layout
    seconds: float
    memory: float
    """Bytes on the worker that holds most, while it computes."""
    sent: float
    """Bytes that are sent by the worker that holds most parameters."""
    bubble: float
    """The share of a pipeline's passes in which a worker does not compute, in the mean."""
    parts: dict[str, float]
    """Where the seconds go: computing, idling in a pipeline, what is waited for along each axis, updating, waiting for
    cores, and for workers that are slower in this step."""


def predict(layout: Layout, model: Model, cluster: Cluster, *, exact: bool = True) -> Prediction:
    """One layout; not `exact`: its pipeline by formula, for a first choice among many."""
    one = _Step(layout, model, cluster, exact=exact)
    step = played(layout, one.passes, one.send, exact=exact)
    unsent = played(layout, one.passes, 0.0, exact=exact) if one.send else step
    busy = [_most(passes, layout) for passes in (one.alone, one.summed, one.passes)]
    seconds = step.seconds + one.sharded + one.agreeing + one.updating
    crowded = 0.0
    if cluster.cores:
        crowded = (
            one if model.by_processor is None else _Step(layout, model.by_processor, cluster, exact=exact)
        ).crowded
    crowded = max(0.0, crowded - seconds)
    waiting = waited(layout, model.spread) * (unsent.seconds + one.updating + crowded)
    held = range(layout.stages) if exact else (0, layout.stages - 1)
    return Prediction(
        layout=layout,
        seconds=seconds + crowded + waiting,
        memory=max(
            _memory(layout, model, one.mine[worker], worker, one.examples, exact=exact) for worker in {*held, one.most}
        ),
        sent=_sent(layout, model, one.mine[one.most], one.numbers, one.examples),
        bubble=unsent.bubble,
        parts={
            "computing": busy[0],
            "bubble": max(0.0, unsent.seconds - busy[2]),
            "tensor": busy[1] - busy[0],
            "stages": max(0.0, step.seconds - unsent.seconds),
            "shards": one.sharded + busy[2] - busy[1],
            "replicas": one.agreeing,
            "updating": one.updating,
            "cores": crowded,
            "waiting": waiting,
        },
    )


class _Step:
    """What a step of a layout is made of, in seconds."""

    def __init__(self, layout: Layout, model: Model, cluster: Cluster, *, exact: bool) -> None:
        self._layout, self._model, self._cluster, self._exact = layout, model, cluster, exact
        stages = model.stages(layout.stages * layout.chunks, layout.tensor)
        self.examples = model.batch / (layout.replicas * layout.shards * layout.microbatches)
        self.alone = computing(stages, self.examples)
        self.summed = with_sums(self.alone, stages, cluster, self.examples)
        self.passes = with_gathers(self.summed, stages, layout, model, cluster)
        self.send = _send(stages, layout, cluster, self.examples)
        self.mine = [[stages[number] for number in owned] for owned in layout.owned]
        numbers = [model.numbers_of(some) for some in self.mine]
        self.most = max(range(len(numbers)), key=numbers.__getitem__)
        """The worker that holds most parameters, and how many."""
        self.numbers = numbers[self.most]
        owned = layout.owned[self.most]
        self.sharded = _sharded(layout, model, cluster, self.numbers, self.passes, owned)
        self.agreeing = _agreeing(layout, model, cluster, self.numbers, self.passes.backward_of(owned))
        self.updating = model.outside + model.update * self.numbers / layout.shards

    @property
    def crowded(self) -> float:
        """Until workers that share the cores of a host have made it: the least that all its parts take on these cores,
        and as a pipeline is played on so many. Exchanges of a host take its cores, too."""
        layout, cluster = self._layout, self._cluster
        in_passes = after = 0.0
        if not cluster.per_host:
            in_passes, after = _most(self.passes, layout) - _most(self.alone, layout), self.sharded + self.agreeing
        computed = sum(self.alone.of(mine) for mine in layout.owned) / layout.stages * layout.microbatches
        found = (computed + in_passes + after + self.updating) * cluster.crowd
        if self._exact and layout.schedule and cluster.crowd > 1:
            on_cores = played(layout, self.passes, self.send, exact=True, cores=layout.stages / cluster.crowd)
            found = max(found, on_cores.seconds + (after + self.updating) * cluster.crowd)
        return found * (self._model.crowding if cluster.crowd > 1 else 1.0)


def _most(passes: Passes, layout: Layout) -> float:
    return max(passes.of(mine) for mine in layout.owned) * layout.microbatches


def _send(stages: Sequence[Stage], layout: Layout, cluster: Cluster, examples: float) -> float:
    if layout.stages == 1:
        return 0.0
    output = max(stage.output for stage in stages[:-1]) * examples
    return cluster.send(output, layout.shards * layout.tensor, layout.tensor)


def _sharded(
    layout: Layout, model: Model, cluster: Cluster, numbers: float, passes: Passes, mine: Sequence[int]
) -> float:
    """Seconds for which gathers (but those of ZeRO 3, which passes have) and sums over shards are waited for."""
    if layout.shards == 1:
        return 0.0
    gather = cluster.gather(model.gathered_each * numbers, layout.shards, layout.tensor)
    reduce = cluster.gather(model.bytes_each * numbers, layout.shards, layout.tensor)
    hides = cluster.hides(layout.shards, layout.tensor)
    before = 0.0
    if layout.zero != 3:
        before = _waited(gather, passes.forward_of(mine), hides=hides) + model.gathering * numbers
    behind = _waited(reduce, passes.backward_of(mine), hides=hides) + model.reducing * numbers
    return before + layout.reduces * behind


def _agreeing(layout: Layout, model: Model, cluster: Cluster, numbers: float, backward: float) -> float:
    """Seconds for which replicas wait for each other's pieces, in the mean of many steps."""
    if layout.replicas == 1:
        return 0.0
    nbytes, stride = model.bytes_each * numbers / layout.shards, layout.stages * layout.shards * layout.tensor
    if layout.strategy == "d-psgd":
        seconds = NEIGHBOURS * cluster.send(nbytes, stride)
    else:
        seconds = cluster.all_reduce(nbytes, layout.replicas, stride)
    if layout.strategy == "local-sgd":
        seconds /= SYNC_EVERY
    # Pieces are there when they have been reduced over shards, so the pass is over by then.
    hides = layout.strategy in _HIDDEN and layout.shards == 1 and cluster.hides(layout.replicas, stride)
    return _waited(seconds, backward, hides=hides)


def _waited(seconds: float, behind: float, *, hides: bool) -> float:
    return max(0.0, seconds - behind) if hides else seconds


def _memory(layout: Layout, model: Model, mine: Sequence[Stage], worker: int, examples: float, *, exact: bool) -> float:
    saved, again = max(stage.saved for stage in mine), max(stage.again for stage in mine)
    microbatches = most_held(layout, worker, exact=exact)
    whole = model.bytes_each * model.numbers_of(mine) if layout.keeps_whole_gradients else 0
    found = model.held(mine, layout.zero, layout.shards) + microbatches * saved * examples
    if layout.schedule and layout.zero == 3:  # behind a backward pass all is gathered, and less is saved
        found = max(found, model.held(mine, 2, layout.shards) + (microbatches - 1) * saved * examples)
    return found + again * examples + whole


def _sent(layout: Layout, model: Model, mine: Sequence[Stage], numbers: float, examples: float) -> float:
    """Bytes in a step, of rings: a sum over n is 2 (n - 1) / n of what is summed, a gather half."""
    each = examples * layout.microbatches
    sums = sum(2 * stage.sums[1] + stage.sums_again[1] for stage in mine) * each
    handed = 2 * len(mine) * mine[0].output * each if layout.stages > 1 else 0.0
    shards = numbers * (gathers(layout) * model.gathered_each + layout.reduces * model.bytes_each)
    piece = model.bytes_each * numbers / layout.shards
    ring = 2 * _others(layout.replicas) * piece
    replicas = {"": 0.0, "local-sgd": ring / SYNC_EVERY, "d-psgd": NEIGHBOURS * piece}.get(layout.strategy, ring)
    return 2 * _others(layout.tensor) * sums + handed + _others(layout.shards) * shards + replicas


def _others(size: int) -> float:
    return (size - 1) / size
