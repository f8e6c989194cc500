"""Schedulers that follow the progress of the training, and rates of steps with fewer workers than at the start.

Under a quorum, or a dynamic share without waiting, a fast worker makes more steps than synchronous training would, and
a slow one fewer. A scheduler that the script steps once per `optimizer.step()` is therefore stepped as often as the
training has made synchronous steps: gradients used, over the number of workers. One that is stepped more rarely (once
per epoch) is stepped when the script says so.

Where all make each step together, a worker whose data ended early misses the steps of the others until all pause. Its
schedulers that are stepped once per step then make up for these steps. Under a quorum they do so after a pause, for
the rounds that this worker has applied there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from inspect import signature
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from quorate.core.contracts import Wire
from quorate.core.telling import tell
from quorate.observe.step_observer import Phase, StepObserver
from quorate.optim.rates import scale_of, scaling_of
from quorate.replica.options_in_force import OptionsInForce, put_options
from quorate.replica.plain_step import options_of
from quorate.replica.shared_step import SharedOptions

SCHEDULES = "_quorate_schedules"
"""The attribute of an optimizer that holds its `Schedules`."""
GOES_BY_ITSELF = "_quorate_goes_by_itself"
"""The attribute of a scheduler that reads the progress of the training itself; it has a method `has_paused`."""
_WRAPPED = "_quorate_wrapped"
_lock = Lock()


@dataclass
class _Followed:
    base: int
    """Synchronous steps of the training that it does not make."""
    called: int
    """The number of steps that the worker had made at its last call."""
    done: int = 0
    """The steps that it has made, if it does not count them itself."""
    is_per_step: bool = False
    """Whether its last call was the only one after a step of the worker, without arguments."""


class Schedules(StepObserver):
    """The schedulers of one worker's optimizer, which also observes where its steps begin in the training.

    `progress` returns the synchronous steps of the training up to this worker's replica, or None where its own steps
    are those. `steps` returns the number of steps that this worker has begun. `enters` says whether it is a newcomer:
    its schedulers then catch up.
    """

    phase = Phase.CHECK

    def __init__(
        self,
        optimizer: str,
        options: OptionsInForce,
        progress: Callable[[], float | None],
        steps: Callable[[], int],
        *,
        enters: bool,
        waits: Callable[[], bool],
    ) -> None:
        """`options` counts the steps that schedulers have made. `waits` returns whether a step is under way, of which
        the script has made some micro-batches."""
        self.optimizer, self._options, self._enters = optimizer, options, enters
        self._progress, self._steps, self._waits = progress, steps, waits
        self._followed: WeakKeyDictionary[Any, _Followed] = WeakKeyDictionary()
        self._by_themselves: WeakSet[Any] = WeakSet()
        self._begun = 0
        self._runs = False

    @property
    def _place(self) -> int | None:
        progress = self._progress()
        return None if progress is None else int(progress + 1e-6)

    def step_begins(self) -> None:
        self._begun = self._place or 0

    def called(self, scheduler: Any, step: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Handle the script's call `scheduler.step(*args, **kwargs)` of the scheduler's own `step`."""
        if getattr(scheduler, GOES_BY_ITSELF, False):
            self._by_themselves.add(scheduler)
            self._run(scheduler, step, args, kwargs)
            return
        if self._waits() and not _is_initial(scheduler):
            return
        place, steps, is_new = self._place, self._steps(), scheduler not in self._followed
        if self._runs or place is None or _says_epoch(step, args, kwargs) or _is_initial(scheduler):
            if is_new and not self._runs:  # it is being constructed, or follows its own numbers
                self._followed[scheduler] = _Followed(self._begun, steps)
            if place is None and not self._runs and not is_new:
                followed = self._followed[scheduler]
                followed.is_per_step = steps - followed.called == 1 and not args and not kwargs
                followed.called = steps
            self._run(scheduler, step, args, kwargs)
            return
        followed = self._followed.setdefault(scheduler, _Followed(self._begun, 0))
        if is_new:
            followed.base = 0 if self._enters else self._begun - _count(scheduler, followed)
        since, followed.called = steps - followed.called, steps
        if since != 1:
            followed.is_per_step = False
            self._run(scheduler, step, args, kwargs)
            followed.base = place - _count(scheduler, followed)
            return
        followed.is_per_step = not args and not kwargs
        due = place - followed.base - _count(scheduler, followed)
        if self._enters and is_new and due > 1:
            _put_first(scheduler)
        for _ in range(due):
            self._run(scheduler, step, args, kwargs)
            followed.done += 1

    def catch_up(self, optimizer: Optimizer, missed: int, own: Sequence[dict[str, Any]]) -> None:
        """Make the steps of schedulers for `missed` steps of the training that this worker has copied from another one.

        `own` are the options that this worker had before (`options_of`), from which its schedulers continue; the
        optimizer keeps its options.
        """
        if self._progress() is not None:
            return
        shared = options_of(optimizer)
        put_options(optimizer.param_groups, own)
        for scheduler, followed in list(self._followed.items()):
            for _ in range(missed if followed.is_per_step else 0):
                self._run(scheduler, type(scheduler).step, (), {}, stops_at_end=True)
        put_options(optimizer.param_groups, shared)

    def has_paused(self, *, ended: bool) -> None:
        """Make the steps of schedulers for the rounds that this worker has applied in a pause, if it goes on."""
        place = self._place
        if place is None or ended:
            return
        for scheduler, followed in list(self._followed.items()):
            due = place - followed.base - _count(scheduler, followed) if followed.is_per_step else 0
            for _ in range(due):
                self._run(scheduler, type(scheduler).step, (), {})
                followed.done += 1
        for scheduler in self._by_themselves:
            scheduler.has_paused()

    def _run(
        self, scheduler: Any, step: Callable[..., Any], args: Any, kwargs: Any, *, stops_at_end: bool = False
    ) -> None:
        end, stops = getattr(scheduler, "total_steps", None), stops_at_end or self._progress() is not None
        if isinstance(end, int) and stops and _count(scheduler, None) >= end:
            return  # torch raises beyond it
        before, self._runs = self._runs, True
        try:
            step(scheduler, *args, **kwargs)
            self._options.moved += 1
        finally:
            self._runs = before


def _count(scheduler: Any, followed: _Followed | None) -> int:
    epoch = getattr(scheduler, "last_epoch", None)
    if epoch is None and getattr(scheduler, "_schedulers", None):  # ChainedScheduler
        epoch = getattr(scheduler._schedulers[0], "last_epoch", None)
    if isinstance(epoch, int):
        return epoch
    return 0 if followed is None else followed.done


def _says_epoch(step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the script passes the place in the training, as in `scheduler.step(epoch + batch / batches)`."""
    place = _place_of_epoch(step)
    says = kwargs.get("epoch") is not None or bool(args[1:])
    return says or (place is not None and any(x is not None for x in args[place:]))


@lru_cache
def _place_of_epoch(step: Callable[..., Any]) -> int | None:
    """Return the place of `epoch` among the arguments of a scheduler's `step`; None where it takes none."""
    names = list(signature(step).parameters)[1:]
    return names.index("epoch") if "epoch" in names else None


def _is_initial(scheduler: Any) -> bool:
    return bool(getattr(scheduler, "_is_initial", False)) or getattr(scheduler, "last_epoch", 0) < 0


def _put_first(scheduler: Any) -> None:
    """Restore the learning rates that it began with: a newcomer's groups have those of the training."""
    for group, rate in zip(scheduler.optimizer.param_groups, getattr(scheduler, "_last_lr", ()), strict=False):
        group["lr"] = rate


def follow(optimizer: Optimizer, schedules: Schedules) -> None:
    """Let `schedules` decide how often the schedulers of `optimizer` are stepped, future ones included."""
    optimizer.__dict__[SCHEDULES] = schedules
    with _lock:
        if _WRAPPED not in LRScheduler.__dict__:
            setattr(LRScheduler, _WRAPPED, True)
            wrap_new: Any = classmethod(_wrap_new)
            LRScheduler.__init_subclass__ = wrap_new  # type: ignore[method-assign]
            _wrap(LRScheduler)


def _wrap(kind: type[Any]) -> None:
    """Make `step` of `kind`, and of all its subclasses, ask the schedules of the optimizer."""
    if "step" in kind.__dict__:
        kind.step = _asking(kind.__dict__["step"])
    for other in kind.__subclasses__():
        _wrap(other)


def _wrap_new(kind: Any, /, **kwargs: Any) -> None:
    super(LRScheduler, kind).__init_subclass__(**kwargs)
    if "step" in kind.__dict__:
        kind.step = _asking(kind.__dict__["step"])


def _asking(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def asks(self: Any, *args: Any, **kwargs: Any) -> Any:
        schedules = getattr(getattr(self, "optimizer", None), "__dict__", {}).get(SCHEDULES)
        if schedules is None:
            return step(self, *args, **kwargs)
        return schedules.called(self, step, *args, **kwargs)

    return asks


class ShrunkRate:
    """The factor of the rates of one worker's steps with fewer workers than at the start, scaled by their batch.

    With k of W workers in a step, the rate is multiplied by k / W if a step is proportional to its gradient (Goyal et
    al. 2017, arXiv 1706.02677). Else it is multiplied by the root of k / W (Krizhevsky 2014, arXiv 1404.5997). The
    options of the optimizer, and its schedulers, keep their numbers. Raises `ConfigurationError` for an unknown
    optimizer.
    """

    def __init__(self, optimizer: Optimizer, plain: type[Optimizer], wire: Wire) -> None:
        self._optimizer, self._wire, self._told = optimizer, wire, wire.size
        self._rule = scaling_of([kind.__name__ for kind in plain.__mro__])

    def factor(self, workers: int) -> float:
        """Return the factor for a step of so many `workers`; the first one that lives reports a change."""
        factor = scale_of(self._rule, workers, self._wire.size)
        if workers != self._told:
            self._told = workers
            if self._wire.rank == self._wire.alive[0]:
                rates = (
                    "the learning rates of the script count" if factor == 1 else f"learning rates times {factor:.3g}"
                )
                tell(f"quorate: steps have the batches of {workers} of {self._wire.size} workers now; {rates}\n")
        return factor

    @contextmanager
    def scaled(self, options: Any, workers: int) -> Iterator[Any]:
        """Yield the `options` of a round, scaled; where there are none (None), scale the optimizer's own inside."""
        factor = self.factor(workers)
        groups = self._optimizer.param_groups if options is None and factor != 1 else []
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            yield options if options is None or factor == 1 else _scaled(options, factor)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def _scaled(options: Any, factor: float) -> Any:
    if isinstance(options, SharedOptions):
        return replace(options, options=_scaled(options.options, factor))
    return [{**group, "lr": group["lr"] * factor} if "lr" in group else group for group in options]
