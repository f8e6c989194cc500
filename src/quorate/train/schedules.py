"""Schedulers go by the progress of the training, where workers make unequal numbers of steps.

Under a quorum, or a dynamic share without waiting, a fast worker makes more steps than synchronous training would, and
a slow one fewer. A scheduler that the script steps once per `optimizer.step()` is so stepped as often as the training
has made synchronous steps: gradients used up, over the number of workers. One that is stepped more rarely (once per
epoch) is stepped when the script says so.

Where all make each step together, a worker whose data ended early misses the steps of the others until all pause. Its
schedulers that are stepped once per step then make up for these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from quorate.observe.step_observer import Phase, StepObserver
from quorate.replica.options_in_force import OptionsInForce, put_options
from quorate.replica.plain_step import options_of

SCHEDULES = "_quorate_schedules"
"""The attribute of an optimizer that holds its `Schedules`."""
GOES_BY_ITSELF = "_quorate_goes_by_itself"
"""The attribute of a scheduler that looks itself at how far the training has come."""
_WRAPPED = "_quorate_wrapped"
_lock = Lock()


@dataclass
class _Followed:
    """What is known of one scheduler."""

    base: int
    """Synchronous steps of the training that it has not to make."""
    called: int
    """How many steps the worker had made when it was called last."""
    done: int = 0
    """Steps that it has made, where it does not count them itself."""
    is_per_step: bool = False
    """Whether it was called last once for a step of the worker, with nothing."""


class Schedules(StepObserver):
    """The schedulers of one worker's optimizer, which also observes where its steps begin in the training.

    `progress` gives the synchronous steps that the training has made as far as this worker's replica goes, or None
    where its own steps are those. `steps` gives the number of steps that this worker has begun. `enters` says whether
    it joins a training under way: its schedulers then catch up.
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
    ) -> None:
        """`options` counts the steps that schedulers have made."""
        self.optimizer, self._options, self._enters = optimizer, options, enters
        self._progress, self._steps = progress, steps
        self._known: WeakKeyDictionary[Any, _Followed] = WeakKeyDictionary()
        self._begun = 0
        self._runs = False

    @property
    def _place(self) -> int | None:
        progress = self._progress()
        return None if progress is None else int(progress + 1e-6)

    def step_begins(self) -> None:
        """Keep where the training is as a step begins."""
        self._begun = self._place or 0

    def called(self, scheduler: Any, step: Callable[..., Any], *given: Any, **named: Any) -> None:
        """The script has called `scheduler.step(*given, **named)`, whose own is `step`."""
        if getattr(scheduler, GOES_BY_ITSELF, False):
            self._run(scheduler, step, given, named)
            return
        place, steps, is_new = self._place, self._steps(), scheduler not in self._known
        if self._runs or place is None or given[1:] or named.get("epoch") is not None or _is_initial(scheduler):
            if is_new and not self._runs:  # it is being made, or goes by its own numbers
                self._known[scheduler] = _Followed(self._begun, steps)
            if place is None and not self._runs and not is_new:
                one = self._known[scheduler]
                one.is_per_step = steps - one.called == 1 and not given and not named
                one.called = steps
            self._run(scheduler, step, given, named)
            return
        one = self._known.setdefault(scheduler, _Followed(self._begun, 0))
        if is_new:
            one.base = 0 if self._enters else self._begun - _count(scheduler, one)
        since, one.called = steps - one.called, steps
        if since != 1:
            self._run(scheduler, step, given, named)
            one.base = place - _count(scheduler, one)
            return
        due = place - one.base - _count(scheduler, one)
        if self._enters and is_new and due > 1:
            _put_first(scheduler)
        for _ in range(due):
            self._run(scheduler, step, given, named)
            one.done += 1

    def catch_up(self, optimizer: Optimizer, missed: int, own: Sequence[dict[str, Any]]) -> None:
        """The training has made `missed` steps more than this worker, which has their numbers from another one.

        `own` are the options that this worker had before (`options_of`), from which its schedulers go on; the optimizer
        keeps those that it has.
        """
        if self._progress() is not None:
            return
        shared = options_of(optimizer)
        put_options(optimizer.param_groups, own)
        for scheduler, one in list(self._known.items()):
            for _ in range(missed if one.is_per_step else 0):
                self._run(scheduler, type(scheduler).step, (), {}, stops_at_end=True)
        put_options(optimizer.param_groups, shared)

    def _run(
        self, scheduler: Any, step: Callable[..., Any], given: Any, named: Any, *, stops_at_end: bool = False
    ) -> None:
        end, stops = getattr(scheduler, "total_steps", None), stops_at_end or self._progress() is not None
        if isinstance(end, int) and stops and _count(scheduler, None) >= end:
            return  # torch raises beyond it
        before, self._runs = self._runs, True
        try:
            step(scheduler, *given, **named)
            self._options.moved += 1
        finally:
            self._runs = before


def _count(scheduler: Any, one: _Followed | None) -> int:
    """Steps that it has made."""
    found = getattr(scheduler, "last_epoch", None)
    if found is None and getattr(scheduler, "_schedulers", None):  # ChainedScheduler
        found = getattr(scheduler._schedulers[0], "last_epoch", None)
    if isinstance(found, int):
        return found
    return 0 if one is None else one.done


def _is_initial(scheduler: Any) -> bool:
    """Whether its step is the one that makes it."""
    return bool(getattr(scheduler, "_is_initial", False)) or getattr(scheduler, "last_epoch", 0) < 0


def _put_first(scheduler: Any) -> None:
    """Learning rates are again what it began with: those of the training are in the groups of one that joins."""
    for group, rate in zip(scheduler.optimizer.param_groups, getattr(scheduler, "_last_lr", ()), strict=False):
        group["lr"] = rate


def follow(optimizer: Optimizer, schedules: Schedules) -> None:
    """From now on `schedules` decides how often the schedulers of `optimizer` are stepped, those to come included."""
    optimizer.__dict__[SCHEDULES] = schedules
    with _lock:
        if _WRAPPED not in LRScheduler.__dict__:
            setattr(LRScheduler, _WRAPPED, True)
            wrap_new: Any = classmethod(_wrap_new)
            LRScheduler.__init_subclass__ = wrap_new  # type: ignore[method-assign]
            _wrap(LRScheduler)


def _wrap(kind: type[Any]) -> None:
    """Let `step` of `kind`, and of all classes made of it, ask the schedules of the optimizer."""
    if "step" in kind.__dict__:
        kind.step = _asking(kind.__dict__["step"])
    for other in kind.__subclasses__():
        _wrap(other)


def _wrap_new(kind: Any, /, **named: Any) -> None:
    super(LRScheduler, kind).__init_subclass__(**named)
    if "step" in kind.__dict__:
        kind.step = _asking(kind.__dict__["step"])


def _asking(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def asks(self: Any, *given: Any, **named: Any) -> Any:
        schedules = getattr(getattr(self, "optimizer", None), "__dict__", {}).get(SCHEDULES)
        if schedules is None:
            return step(self, *given, **named)
        return schedules.called(self, step, *given, **named)

    return asks
