"""The training of a model that `quorate.parallelize` has spread: each worker distributes its piece of a replica."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.strategy import Strategy
from quorate.core.telling import tell
from quorate.observe.step_observer import Observers, Phase, StepObserver
from quorate.observe.step_times import StepTimer
from quorate.optim.by_layers import ByLayers, Pieces
from quorate.quorums.whole_replica import WholeReplica
from quorate.records.rows import Layers
from quorate.replica.by_tensors import is_by_numbers
from quorate.replica.replica import Replica
from quorate.sharding.mesh import Coordinates
from quorate.sharding.optimizer_steps import OnPieces, WholeTensors
from quorate.sharding.parallelize import Sharded
from quorate.sharding.stages.delayed import DelayedPipeline
from quorate.train.combination import Combination
from quorate.train.watched import Watched
from quorate.wire.metered import Metered

_TOLD = 3
"""Names in a sentence."""
_IN_FULL = ("whole", "sequence", "channels")
"""The styles of layers that each worker of a tensor axis has in full."""


def as_pieces(spread: Sharded, strategy: Strategy, watched: Watched) -> tuple[Strategy, Watched]:
    """Return the strategy and the arguments beside it as they are where each worker has a piece of a replica.

    A replica ends where one of its workers does.
    """
    goes_on = strategy.on_death == "continue" and strategy.meets == "rounds" and spread.coordinates.axes.replicas > 1
    changes: Any = {"on_death": "continue" if goes_on else "stop", "on_error": strategy.on_error if goes_on else "stop"}
    return dataclasses.replace(strategy, **changes), dataclasses.replace(watched, coordinates=spread.coordinates)


def in_pieces(combination: Combination, spread: Sharded) -> Combination:
    """Return `combination` for a model that is spread over workers."""
    axes, pipeline, offload = spread.coordinates.axes, spread.pipeline, spread.offload
    shared = () if pipeline is None or axes.replicas == 1 else pipeline.ending.shared
    is_cut = any(style not in _IN_FULL for style in (spread.plan or {}).values())
    beside: Any = {"offloads": offload is not None, "delays_update": offload is not None and offload.delays}
    beside["delays_gradients"] = pipeline is not None and pipeline.layout.is_delayed
    return dataclasses.replace(combination, axes=axes, shared=shared, divides_layers=is_cut, **beside)


def check_in_shards(model: Module, coordinates: Coordinates, parameters: Iterable[Tensor]) -> None:
    """Raise `ConfigurationError` for parameters added after `parallelize`: each worker would train its own."""
    if coordinates.axes.shards == 1:
        return
    from quorate.sharding.script_access import is_left_whole

    for p in parameters:
        if not is_sharded(p) and not is_left_whole(model, p):
            raise ConfigurationError(
                f"the optimizer has a parameter of shape {tuple(p.shape)} that is not in shards; add modules and "
                "parameters to the model before quorate.parallelize"
            )


def check_trained_stage(coordinates: Coordinates, parameters: Iterable[Tensor]) -> None:
    """Raise `ConfigurationError` for a stage that trains nothing: its worker takes part in no step, and others wait."""
    if coordinates.axes.stages > 1 and not any(p.requires_grad for p in parameters):
        raise ConfigurationError(
            f"stage {coordinates.stage} has no parameter that is trained, so its worker would take part in no step; "
            "train a layer of it, or divide the model into fewer stages"
        )


def delayed_gradients(spread: Sharded, optimizer: Optimizer, watching: Observers) -> dict[str, Any]:
    """Return the entry of `Distributed` by which checkpoints have gradients that are one batch old, if there are."""
    pipeline = spread.pipeline
    if not isinstance(pipeline, DelayedPipeline):
        return {}

    @contextmanager
    def ahead() -> Iterator[None]:
        before, watching.is_paused = watching.is_paused, True
        try:
            with pipeline.gradients_in(optimizer):
                yield
        finally:
            watching.is_paused = before

    return {"ahead": ahead}


def lay_out_steps(
    optimizer: Optimizer, name: str, replica: Replica, spread: Sharded, watched: Watched
) -> Callable[[], Collection[int]] | None:
    """Prepare the steps over pieces; return `Distributed.owned`.

    If the optimizer calculates with full tensors, each worker of a replica makes the steps of some of them. An
    optimizer that only needs their norms adds these up over the pieces. Optimizers of torch that treat each number
    alike step the pieces as plain tensors.
    """
    coordinates, pipeline = spread.coordinates, spread.pipeline
    replica.corrects_delay |= pipeline is not None and pipeline.layout.corrects
    if isinstance(optimizer, ByLayers) and coordinates.abreast.size > 1:
        norms = Metered(coordinates.abreast.channel(f"optimizer/{name}/norms"), coordinates.traffic.meter)
        optimizer.pieces = Pieces(norms.size, WholeReplica(norms).sums)
    if watched.shard_by == "tensors" and coordinates.axes.shards > 1:
        wire = Metered(coordinates.abreast.channel(f"optimizer/{name}/tensors"), coordinates.traffic.meter)
        replica.spread = whole = WholeTensors(wire, coordinates.traffic)
        return partial(whole.owned, optimizer)
    if is_by_numbers(replica.plain):
        replica.spread = OnPieces()
    return None


class AfterPieces(StepObserver):
    """Free the memory of gathered pieces when a backward pass has ended, before the optimizer's step.

    After the first pass a sentence names trained parameters without a gradient. After the second the records get the
    traffic of each layer along the tensor axis.
    """

    phase = Phase.MEASURE

    def __init__(self, replica: Replica, coordinates: Coordinates, timer: StepTimer) -> None:
        self._replica, self._coordinates, self._timer, self._is_first = replica, coordinates, timer, True
        self._passes, self._before = 0, Counter[str]()

    def _note_layers(self) -> None:
        self._passes += 1
        sent, recorder = self._coordinates.traffic.by_layer, self._timer.recorder
        if self._passes == 2 and sent and recorder is not None:
            traffic, now = dict(sent - self._before), self._timer.clock.now()
            recorder.write(Layers(step=self._timer.steps, time=now, optimizer=self._timer.name, sent=traffic))
        elif self._passes == 1:
            self._before = Counter(sent)

    def backward_ended(self) -> None:
        """Cost: a call for each block of memory; one look at each parameter, once."""
        self._coordinates.within.trim()
        self._note_layers()
        if not self._is_first or all(p.grad is None for p in self._replica.trained):
            return  # where passes are added up, they are not reduced to pieces yet
        self._is_first = False
        named = zip(self._replica.names, self._replica.trained, strict=True)
        missing = [name for name, p in named if p.grad is None]
        if missing:
            more = f" and {len(missing) - _TOLD} more" if len(missing) > _TOLD else ""
            tell(
                f"quorate: the first backward pass has left {', '.join(missing[:_TOLD])}{more} without a gradient; "
                "they are not trained until they get one\n"
            )
