"""Optimizers that this library does not drive: of a worker alone, and of a model that somebody else keeps equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.optim import Optimizer

from quorate.replica.plain_step import plain_step
from quorate.sharding.host_step import HostStep
from quorate.train.distributed_optimizer import DistributedOptimizer

WORKER = "_quorate_worker"
_HOST = "_quorate_host"


class Alone:
    """A distributed optimizer in a world of one: nobody has to agree, so the plain class does everything."""

    def accumulate(self) -> AbstractContextManager[None]:
        """Nothing has to wait for the end of an accumulation."""
        return nullcontext()

    def finish(self) -> None:
        """Nothing: there is nobody to be equal to."""

    def __reduce__(self) -> Any:
        return (plain_again, (type(self).__mro__[2], self.__getstate__()))


class AloneOnHost:
    """A worker in a world of one, with the optimizer's step on the host."""

    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the plain class, there; returns what that returns."""
        own: dict[str, Any] = self.__dict__
        own["_opt_called"] = True  # what schedulers look for
        optimizer: Any = self
        return plain_step(optimizer, type(optimizer).__mro__[2], closure, elsewhere=own[_HOST].step)

    step.hooked = True  # type: ignore[attr-defined]  # hooks are called around the host's step
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def accumulate(self) -> AbstractContextManager[None]:
        """As of a worker alone."""
        return nullcontext()

    def finish(self) -> None:
        """Let parameters be those after every step."""
        self.__dict__[_HOST].catch_up()

    def __reduce__(self) -> Any:
        return (plain_again, (type(self).__mro__[2], self.__getstate__()))


def steps_on_host(optimizer: Optimizer, host: HostStep) -> None:
    """Let a worker alone make the steps of `optimizer` on the host."""
    optimizer.__dict__.pop("step", None)  # an earlier scheduler froze the plain step into the instance
    optimizer.__dict__[_HOST] = host


class Compared:
    """An optimizer whose model somebody else keeps equal everywhere (a baseline)."""

    def accumulate(self) -> AbstractContextManager[None]:
        """As of a distributed optimizer."""
        paused: AbstractContextManager[None] = self.__dict__[WORKER]()
        return paused

    def finish(self) -> None:
        """Nothing: replicas are equal after every step."""

    def __reduce__(self) -> Any:
        return (plain_again, (type(self).__mro__[2], self.__getstate__()))


def plain_again(plain: type[Optimizer], state: dict[str, Any]) -> Optimizer:
    """A pickled distributed optimizer is its plain class again: it loads without us."""
    again = plain.__new__(plain)
    again.__setstate__(state)
    return again


@functools.cache
def class_of(mixin: type, plain: Any, beside: Callable[[Any], Mapping[str, Any]] | None = None) -> type[Optimizer]:
    """The subclass of `plain` that has what `mixin` does differently, and what `beside(plain)` gives by name."""
    names = {"__doc__": plain.__doc__, "__module__": __name__, **({} if beside is None else beside(plain))}
    made: type[Optimizer] = type(f"Distributed{plain.__name__}", (mixin, plain), names)
    DistributedOptimizer.register(made)
    return made
