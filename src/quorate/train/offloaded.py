"""Whether the steps of an optimizer are made on the host, and how."""

from __future__ import annotations

import inspect

from torch.optim import ASGD, LBFGS, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.observe.memory_use import memory_use
from quorate.sharding.boundary import HostMemory
from quorate.sharding.host_step import HostStep
from quorate.sharding.parallelize import Sharded
from quorate.wire.current import Place

_BY_NUMBER = (SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, NAdam, RAdam, RMSprop, ASGD)
"""Of torch's optimizers those that treat each number alike, so that their steps send nothing."""


def host_step_of(spread: Sharded, optimizer: Optimizer, strategy: Strategy | None, place: Place) -> HostStep | None:
    """How steps are made on the host; None where the optimizer's own step does it.

    Raises `ConfigurationError` for optimizers and strategies that do not go with it. `strategy` None: a baseline.
    """
    how = spread.offload
    if how is None:
        return None
    boundaries, plain = memory_use(place).boundaries, type(optimizer)
    if not any(one is how.boundary for one in boundaries):  # two optimizers may have one model
        boundaries.append(how.boundary)
    if strategy is None:
        raise ConfigurationError(
            "offload= cannot be combined with a baseline, which makes its own steps; leave it None"
        )
    _check(optimizer, plain)
    if how.delays:
        _check_delay(spread, plain, strategy)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rests = how.where == "all"
    if rests and not how.delays and all(p.dtype.itemsize > 2 for p in parameters):
        return None  # the optimizer finds everything on the host
    is_pinned = any(p.device.type == "cuda" for p in parameters)
    memory = HostMemory(how.folder, is_pinned=is_pinned)
    return HostStep(optimizer, plain, how.boundary, memory, delays=how.delays, crosses=not rests)


def _check(optimizer: Optimizer, plain: type[Optimizer]) -> None:
    closure = inspect.signature(plain.step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    if isinstance(optimizer, LBFGS) or needs_closure:
        raise ConfigurationError(
            f"{plain.__name__} asks for the loss several times a step, and with offload= its step is on the host, "
            "where there is no model; use an optimizer that asks once, such as AdamW or SGD"
        )
    if any(group.get("capturable") for group in optimizer.param_groups):
        raise ConfigurationError(
            f"{plain.__name__} with capturable=True steps on a GPU, and offload= makes its steps on the host; leave it"
        )


def _check_delay(spread: Sharded, plain: type[Optimizer], strategy: Strategy) -> None:
    if strategy.meets != "all" or strategy.replicas != "equal" or not strategy.agrees_in_backward:
        raise ConfigurationError(
            f"delayed_update cannot be combined with {type(strategy).__name__}, which writes parameters between "
            "steps while "
            "one is under way on the host; known: all-reduce"
        )
    if spread.seat.axes.shards > 1 and plain not in _BY_NUMBER:
        raise ConfigurationError(
            f"delayed_update makes steps in a thread beside the training's, and {plain.__name__} may send something in "
            f"its step, as others hold the rest of its parameters; known: {', '.join(k.__name__ for k in _BY_NUMBER)}"
        )
