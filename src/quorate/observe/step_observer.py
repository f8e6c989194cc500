"""Observers of the training steps of one worker, in one list.

An observer watches the steps and backward passes of a worker and changes nothing that is learnt. All observers of a
worker, and the training of each of its optimizers, stand in one list, `Observers`. The order of calls is that of the
phases alone: within a phase it has no meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from quorate.core.contracts import Clock
from quorate.core.durations import FORWARD_SHARE
from quorate.wire.real.wall_clock import WallClock

NEVER = math.inf
"""`StepObserver.due` of an observer that has nothing to do."""


class Phase(IntEnum):
    """When an observer is called, among all that are called for one event."""

    SAVE = 0
    """Take the part of a checkpoint that is due: nothing is half done."""
    CHECK = 1
    """Raise an error, or leave the training, before anything is changed."""
    MEASURE = 2
    """Read the numbers of this worker, before they are exchanged."""
    TRAIN = 3
    """The training of an optimizer: gradients are exchanged."""
    RECORD = 4
    """Read and record the outcome."""


class StepObserver:
    """An observer of the steps of one worker. Subclasses override the methods of the events that they need.

    Only overridden methods are called, and none while `due` lies ahead: an observer that has nothing to do costs one
    comparison.
    """

    phase = Phase.RECORD
    optimizer: str | None = None
    """The name of the optimizer whose steps are observed. None: those of all optimizers."""
    due: float = 0
    """The number of the first step (from 1) in which `step_begins` and `step_ended` are called. `NEVER`: this observer
    is not called, for backward passes neither."""

    def backward_begins(self) -> None:
        """The outermost backward pass begins."""

    def forward_ended(self, losses: Any) -> None:
        """The backward pass begins on `losses`; nothing has been computed or exchanged yet."""

    def backward_ended(self) -> None:
        """All gradients of the backward pass are ready."""

    def step_begins(self) -> None:
        """`optimizer.step()` was called."""

    def step_ended(self) -> None:
        """The strategy has made its step."""


class Spending:
    """The modelled compute time of the current step that has passed in this worker (virtual world)."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._compute: Callable[[float], None] = lambda share: None
        self.is_modelled = False
        """Whether time is modelled at all."""

    def follow(self, clock: Clock) -> None:
        """Spend the time of `clock`."""
        self._compute, self.is_modelled = clock.compute, not isinstance(clock, WallClock)

    def up_to(self, share: float) -> None:
        """Let time pass until `share` of the step is spent."""
        if share > self.spent:
            self._compute(share - self.spent)
            self.spent = share

    def backward_has_done(self, fraction: float) -> None:
        """Let time pass until `fraction` of the backward pass is spent."""
        self.up_to(FORWARD_SHARE + (1 - FORWARD_SHARE) * fraction)


Events = Sequence[StepObserver]


class Observers:
    """The observers of one worker, by phase. Belongs to the training thread."""

    def __init__(self) -> None:
        self._all: list[StepObserver] = []
        self._of_steps: dict[str, tuple[Events, Events]] = {}
        self.of_backward: tuple[Events, Events, Events] = ((), (), ())
        """Observers of the beginning of a backward pass, of its losses and of its end."""
        self.spending = Spending()
        self.loss_factor = 1.0
        """The factor of the gradient from which the current backward pass starts."""
        self.is_paused = False
        """Whether backward passes are no part of the training, and no observer is called."""

    def add(self, *observers: StepObserver) -> None:
        """Call `observers` from the next event on."""
        self._all += observers
        self._arrange()

    def remove(self, observer: StepObserver) -> None:
        """Call `observer` no more."""
        self._all.remove(observer)
        self._arrange()

    def step_begins(self, optimizer: str, step: int) -> None:
        """Call the observers that are due as step number `step` of an optimizer begins."""
        for observer in (self._of_steps.get(optimizer) or self._observers_of_steps(optimizer))[0]:
            if observer.due <= step:
                observer.step_begins()

    def step_ended(self, optimizer: str, step: int) -> None:
        """Call the observers that are due as step number `step` of an optimizer has ended."""
        for observer in (self._of_steps.get(optimizer) or self._observers_of_steps(optimizer))[1]:
            if observer.due <= step:
                observer.step_ended()

    def _arrange(self) -> None:
        self._all = in_order(self._all)
        self._of_steps.clear()
        begins, forward = self._overriding("backward_begins"), self._overriding("forward_ended")
        self.of_backward = begins, forward, self._overriding("backward_ended")

    def _observers_of_steps(self, optimizer: str) -> tuple[Events, Events]:
        begins, ended = (
            tuple(observer for observer in self._overriding(event) if observer.optimizer in (None, optimizer))
            for event in ("step_begins", "step_ended")
        )
        self._of_steps[optimizer] = begins, ended
        return begins, ended

    def _overriding(self, event: str) -> Events:
        return tuple(x for x in self._all if getattr(type(x), event) is not getattr(StepObserver, event))


def in_order(observers: Sequence[StepObserver]) -> list[StepObserver]:
    """Return `observers` by phase."""
    return sorted(observers, key=lambda observer: observer.phase)
