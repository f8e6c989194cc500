"""Optimizers that this library does not drive: those of a single worker, and of a model that other code keeps equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.core.telling import tell
from quorate.observe.backward import observe_backward
from quorate.observe.step_observer import Phase, StepObserver
from quorate.replica.plain_step import plain_step, scales_in_step
from quorate.sharding.host_step import HostStep
from quorate.train.distributed_optimizer import DistributedOptimizer
from quorate.train.loss_counts import LossCounts, checked_count
from quorate.wire.current import here

WORKER = "_quorate_worker"
_COUNTS = "_quorate_counts"
_HOST = "_quorate_host"


class _Passes(StepObserver):
    """The backward passes of a single worker, which may be added up in a step."""

    phase = Phase.TRAIN

    def __init__(self, counts: LossCounts) -> None:
        self._counts = counts

    def backward_begins(self) -> None:
        self._counts.of_step()
        self._counts.put_aside()

    def backward_ended(self) -> None:
        self._counts.pass_ended()
        self._counts.settle()


class _CountedAlone:
    """The counts of losses of an optimizer in a world of one."""

    has_updated = True
    """Each step is an update."""

    def weight(self, count: float | Tensor, *, full: float | None = None) -> None:
        """Let the next backward pass count as a mean over `count` terms: see `DistributedOptimizer.weight`."""
        own: dict[str, Any] = self.__dict__
        if _COUNTS not in own:
            optimizer: Any = self
            counts = own[_COUNTS] = LossCounts(lambda: [p for group in optimizer.param_groups for p in group["params"]])
            observe_backward(here()).add(_Passes(counts))
            optimizer.register_step_post_hook(lambda *_: counts.restart())
        own[_COUNTS].note(count, full)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Clear gradients, and their counts, as in torch."""
        super().zero_grad(*arguments, **named)  # type: ignore[misc]
        if _COUNTS in self.__dict__:
            self.__dict__[_COUNTS].restart()


class Alone(_CountedAlone):
    """A distributed optimizer in a world of one: nobody has to agree, so the plain class does everything."""

    def accumulate(self) -> AbstractContextManager[None]:
        """Return a context without effect: there is no exchange to put off."""
        return nullcontext()

    def finish(self) -> None:
        """Do nothing: there is no other worker."""

    def __reduce__(self) -> Any:
        return (plain_again, (wrapped_class(type(self)), self.__getstate__()))


class AloneOnHost(_CountedAlone):
    """The optimizer of a single worker, with its steps on the host."""

    _step_supports_amp_scaling = scales_in_step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        own: dict[str, Any] = self.__dict__
        own["_opt_called"] = True  # schedulers read it
        optimizer: Any = self
        return plain_step(optimizer, wrapped_class(type(optimizer)), closure, elsewhere=own[_HOST].step)

    step.hooked = True  # type: ignore[attr-defined]  # hooks are called around the host's step
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def accumulate(self) -> AbstractContextManager[None]:
        """Return a context without effect: there is no exchange to put off."""
        return nullcontext()

    def finish(self) -> None:
        """Wait for the newest step, and write the parameters after it."""
        self.__dict__[_HOST].catch_up()

    def __reduce__(self) -> Any:
        return (plain_again, (wrapped_class(type(self)), self.__getstate__()))


def steps_on_host(optimizer: Optimizer, host: HostStep) -> None:
    """Make the steps of `optimizer`, in a world of one, on the host."""
    optimizer.__dict__.pop("step", None)  # an earlier scheduler froze the plain step into the instance
    optimizer.__dict__[_HOST] = host


class Compared:
    """An optimizer whose model other code keeps equal everywhere (a baseline)."""

    has_updated = True
    """Each step is an update."""

    def weight(self, count: float | Tensor, *, full: float | None = None) -> None:
        """Check the count, and say once that it counts nothing here."""
        checked_count(count)
        if _COUNTS not in self.__dict__ and here().wire.rank == 0:
            tell("quorate: optimizer.weight() counts nothing under a baseline, which counts all workers alike\n")
        self.__dict__[_COUNTS] = full

    def accumulate(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes only add to `.grad`."""
        paused: AbstractContextManager[None] = self.__dict__[WORKER]()
        return paused

    def finish(self) -> None:
        """Do nothing: replicas are equal after every step."""

    def __reduce__(self) -> Any:
        return (plain_again, (wrapped_class(type(self)), self.__getstate__()))


def plain_again(plain: type[Optimizer], state: dict[str, Any]) -> Optimizer:
    """Return an optimizer of the plain class for a pickled distributed one, which loads without this library."""
    again = plain.__new__(plain)
    again.__setstate__(state)
    return again


def wrapped_class(kind: type) -> type[Optimizer]:
    """Return the optimizer's own class of one that `class_of` has made."""
    plain: type[Optimizer] = kind.__bases__[1]
    return plain


@functools.cache
def class_of(mixin: type, plain: Any, beside: Callable[[Any], Mapping[str, Any]] | None = None) -> type[Optimizer]:
    """Return the subclass of `plain` with the methods of `mixin`, and those that `beside(plain)` returns by name."""
    names = {"__doc__": plain.__doc__, "__module__": __name__, **({} if beside is None else beside(plain))}
    made: type[Optimizer] = type(f"Distributed{plain.__name__}", (mixin, plain), names)
    DistributedOptimizer.register(made)
    return made
