"""Methods of an optimizer beside `step` that a script calls: the strategies under which they keep replicas equal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.train.alone import WORKER
from quorate.train.worker import StrategyWorker

_SWITCHES = ("train", "eval")


def beside(plain: type[Optimizer]) -> dict[str, Callable[..., Any]]:
    """Return the public methods that `plain` adds to torch's, as they act on a distributed optimizer, by name."""
    names = [name for name in dir(plain) if not name.startswith("_") and not hasattr(Optimizer, name)]
    added = {name: method for name in names if inspect.isfunction(method := inspect.getattr_static(plain, name))}
    methods = {name: _watched(name, method) for name, method in added.items() if name not in _SWITCHES}
    if all(name in added for name in _SWITCHES):
        methods |= {name: _switching(name, added[name]) for name in _SWITCHES}
    return methods


def _worker(optimizer: Any) -> StrategyWorker | None:
    """Return the worker of a distributed optimizer, while the script calls; None inside its own step."""
    worker: StrategyWorker | None = optimizer.__dict__.get(WORKER)
    return None if worker is None or worker.replica.is_stepping or worker.finished else worker


def _switching(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def switches(self: Any) -> Any:
        worker = _worker(self)
        if worker is None or worker.replica.switch is None:
            return method(self)
        if name == "eval":
            _check_shown(worker)
        switch = worker.replica.switch
        return switch.eval() if name == "eval" else switch.train()

    return switches


def _check_shown(worker: StrategyWorker) -> None:
    """Raise `ConfigurationError` where the weights to be evaluated are not this worker's to show."""
    kind = worker.replica.plain.__name__
    if worker.strategy.replicas == "shared":
        raise ConfigurationError(
            f"eval() of {kind} writes into the parameters, which all workers have in common under this strategy; use "
            "another strategy, such as all-reduce"
        )
    if keeps_on_servers(worker) and worker.updates and not worker.replica.optimizer.state:
        raise ConfigurationError(
            f"eval() of {kind} needs what it keeps of the parameters, and servers have that while they train; call it "
            "on all workers inside `with world.evaluate():`"
        )


def check_switched(worker: StrategyWorker) -> None:
    """Raise `ConfigurationError` for a step in the weights that are to be evaluated."""
    switch = worker.replica.switch
    if switch is not None and switch.is_eval and (worker.has_rounds or worker.is_served):
        raise ConfigurationError(
            f"step() was called after eval() of {worker.replica.plain.__name__}; call its train() before that"
        )


def check_step_in_evaluation(worker: StrategyWorker) -> None:
    """Raise `ConfigurationError` for a step inside `world.evaluate()` that servers would make."""
    if keeps_on_servers(worker):
        raise ConfigurationError(
            f"optimizer.step() was called inside `with world.evaluate():`, and under {worker.label} servers make the "
            "steps, which pause until the end of the block; make the step before or after it"
        )


def check_arguments(worker: StrategyWorker) -> None:
    """Raise `ConfigurationError` if arguments of `step` besides a closure would not reach every replica."""
    kind = worker.replica.plain.__name__
    if _steps_are_common(worker):
        raise ConfigurationError(
            f"step() of {kind} was given arguments besides a closure, and under this strategy a step is made of the "
            "gradients of several workers, who may have passed others. Put them into the parameter groups, or use "
            "all-reduce"
        )
    if worker.replica.steps_elsewhere:
        raise ConfigurationError(
            f"step() of {kind} was given arguments besides a closure, and steps of a model in shards, or on the host, "
            "take none; put them into the parameter groups"
        )


def keeps_on_servers(worker: StrategyWorker) -> bool:
    """Return whether servers make the steps, and hold the state of the optimizer."""
    return worker.is_served and worker.strategy.replicas == "meet"


def _steps_are_common(worker: StrategyWorker) -> bool:
    return (worker.has_rounds and not worker.differs) or keeps_on_servers(worker)


def _watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def watches(self: Any, *args: Any, **kwargs: Any) -> Any:
        worker = _worker(self)
        if worker is None or not _steps_are_common(worker):
            return method(self, *args, **kwargs)
        before = _kept(self)
        returned = method(self, *args, **kwargs)
        if _kept(self) != before:
            raise ConfigurationError(
                f"{name}() of {worker.replica.plain.__name__} has written numbers that this worker alone has into the "
                "optimizer's state or the parameters, and under this strategy the replicas would diverge. Use "
                "all-reduce, under which gradients are equal on all workers after backward()"
            )
        return returned

    return watches


def _kept(optimizer: Optimizer) -> list[tuple[int, int]]:
    tensors: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]
    for kept in list(optimizer.state.values()):
        tensors += kept.values() if isinstance(kept, dict) else [kept]
    return [(id(x), x._version) for x in tensors if isinstance(x, Tensor)]
