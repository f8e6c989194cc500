"""Training a model that `quorate.parallelize` has spread: each worker distributes its piece of a replica."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.strategy import Strategy
from quorate.core.telling import tell
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.step_times import StepTimer
from quorate.optim.by_layers import ByLayers, Pieces
from quorate.quorums.whole_replica import WholeReplica
from quorate.records.layer_rows import Layers
from quorate.replica.by_tensors import is_by_numbers, shard_by_of
from quorate.replica.replica import Replica
from quorate.sharding.mesh import Seat
from quorate.sharding.on_pieces import OnPieces
from quorate.sharding.parallelize import Sharded
from quorate.sharding.whole_tensors import WholeTensors
from quorate.train.watched import Watched
from quorate.wire.metered import Metered

_TOLD = 3
"""Names in a sentence."""


def as_pieces(
    spread: Sharded, strategy: Strategy, watched: Watched, optimizer: Optimizer, settings: Mapping[str, Any]
) -> tuple[Strategy, Watched]:
    """The strategy and the rest as they are where each worker has a piece of a replica.

    A replica ends where one of its workers does. Raises `ConfigurationError` for what would be decided differently for
    the pieces of one replica, and for an optimizer that needs whole parameters.
    """
    label = watched.strategy
    if not strategy.acts_on_pieces:
        raise ConfigurationError(
            f"{label} does not act between replicas of shards as it is set here: what it does depends on numbers, on "
            "the clock, or on what has arrived, which differ between the shards; known: all-reduce, local-sgd, "
            "post-local-sgd, slowmo, diloco and its presets, hierarchical-local-sgd, gossip without patience, "
            "sync_every being a number of steps, and quorum and its presets"
        )
    if spread.seat.axes.replicas > 1:
        _check_copies(spread, strategy, watched)
    plain: type[Optimizer] = type(optimizer).__mro__[2]
    by = shard_by_of(plain, optimizer.param_groups, watched.shard_by)
    if by == "tensors" and strategy.meets == "rounds":
        raise ConfigurationError(
            f"{label} agrees in rounds, and {plain.__name__} calculates with whole tensors: over a model in shards the "
            "two do not go together yet; take all-reduce, or an optimizer that treats each number alike"
        )
    if by == "tensors" and (spread.offload is not None or spread.plan is not None):
        what = "offload" if spread.offload is not None else "tensor axis"
        raise ConfigurationError(
            f"{plain.__name__} calculates with whole tensors, and does not go together with a{'n' * (what[0] == 'o')} "
            f"{what} yet; leave that out, or take an optimizer that treats each number alike"
        )
    if by == "tensors" and getattr(strategy, "momentum", None) == "average":
        raise ConfigurationError(
            f'momentum="average" cannot be combined with {plain.__name__} and a model in shards: what it keeps '
            "lies on one "
            "worker of a replica for each whole tensor, and means are of pieces; leave momentum out"
        )
    if watched.weight != "equal":
        raise ConfigurationError(
            f'weight="{watched.weight}" cannot be combined with a model in shards: its gradients are plain means '
            "over the "
            'workers of a replica; leave weight="equal"'
        )
    if settings.get("on_death") == "continue" and strategy.meets != "rounds":
        raise ConfigurationError(
            f'on_death="continue" cannot be combined with {label} of a model in shards: replicas go on without '
            "one that has "
            "lost a worker under quorum and its presets"
        )
    goes_on = strategy.on_death == "continue" and strategy.meets == "rounds" and spread.seat.axes.replicas > 1
    changes: Any = {"on_death": "continue" if goes_on else "stop", "on_error": strategy.on_error if goes_on else "stop"}
    return dataclasses.replace(strategy, **changes), dataclasses.replace(watched, seat=spread.seat, shard_by=by)


def check_in_shards(model: Module, seat: Seat, parameters: Iterable[Tensor]) -> None:
    """Raise `ConfigurationError` for parameters that came after `parallelize`: each worker would train its own."""
    if seat.axes.shards == 1:
        return
    from quorate.sharding.script_access import is_left_whole

    for p in parameters:
        if not is_sharded(p) and not is_left_whole(model, p):
            raise ConfigurationError(
                f"the optimizer has a parameter of shape {tuple(p.shape)} that is not in shards; add modules and "
                "parameters to the model before quorate.parallelize"
            )


def _check_copies(spread: Sharded, strategy: Strategy, watched: Watched) -> None:
    """Raise `ConfigurationError` where the copies of a tied parameter in several stages would part."""
    reduction = watched.reduction
    for names, x in () if spread.pipeline is None else spread.pipeline.ending.shared:
        why = ""
        if getattr(strategy, "fragments", 1) > 1:
            why = "fragments of each stage are agreed on at other times; take fragments=1"
        elif reduction.is_adaptive:
            why = 'reduce="adasum" weighs them by what else is in a stage; take another'
        elif reduction.codec is not None and any(reduction.is_coded(name, x) for name in names):
            why = f"each stage would write its own code of it; keep it out with dense={tuple(names)}"
        if why:
            raise ConfigurationError(f"{' and '.join(names)} are one parameter that lies in several stages, and {why}")


def lay_out_steps(kept: Distributed, replica: Replica, seat: Seat, watched: Watched) -> None:
    """How steps over pieces are made.

    Where the optimizer calculates with whole tensors, each worker of a replica makes the steps of some of them; one
    that needs their norms alone adds these up over the pieces. One of torch's that treats each number alike steps the
    pieces as plain tensors.
    """
    if isinstance(kept.optimizer, ByLayers) and seat.abreast.size > 1:
        norms = Metered(seat.abreast.channel(f"optimizer/{kept.name}/norms"), seat.traffic.meter)
        kept.optimizer.pieces = Pieces(norms.size, WholeReplica(norms).sums)
    if watched.shard_by == "tensors" and seat.axes.shards > 1:
        wire = Metered(seat.abreast.channel(f"optimizer/{kept.name}/tensors"), seat.traffic.meter)
        replica.spread = whole = WholeTensors(wire, seat.traffic)
        kept.owned = partial(whole.owned, kept.optimizer)
    elif is_by_numbers(replica.plain):
        replica.spread = OnPieces()


class AfterPieces(StepObserver):
    """What is done when a backward pass over pieces has ended.

    Memory in which gathered pieces travelled is given back before the optimizer's step; after the first pass, a
    sentence tells of trained parameters that have no gradient, and after the second the records are told what each
    layer has sent along the tensor axis.
    """

    phase = Phase.MEASURE

    def __init__(self, replica: Replica, seat: Seat, timer: StepTimer) -> None:
        self._replica, self._seat, self._timer, self._is_first = replica, seat, timer, True
        self._passes, self._before = 0, Counter[str]()

    def _note_layers(self) -> None:
        self._passes += 1
        sent, recorder = self._seat.traffic.by_layer, self._timer.recorder
        if self._passes == 2 and sent and recorder is not None:
            told, now = dict(sent - self._before), self._timer.clock.now()
            recorder.write(Layers(step=self._timer.steps, time=now, optimizer=self._timer.name, sent=told))
        elif self._passes == 1:
            self._before = Counter(sent)

    def backward_ended(self) -> None:
        """Cost: a call for each block of memory; one look at each parameter, once."""
        self._seat.within.trim()
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
