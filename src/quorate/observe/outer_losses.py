"""A report that the loss rises above that of the beginning, while outer steps reach beyond the workers' movement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.telling import tell
from quorate.observe.seen_losses import SeenLosses
from quorate.observe.step_observer import Phase, StepObserver

PERIODS = 3
"""Periods in a row whose loss is above that of the first one before it is reported."""


class OuterLosses(StepObserver):
    """Compares the mean losses of the periods between outer steps, of one worker and one optimizer.

    Losses on a GPU are copied to the host in their steps. An outer step, which is measured, has waited for the copies.
    A period whose losses are not there counts for nothing. Cost: one loss a step.
    """

    phase = Phase.RECORD

    def __init__(self, optimizer: str, steps: Callable[[], int], *, is_scaled: Callable[[], bool]) -> None:
        """`steps` returns the number of steps so far, `is_scaled` whether a GradScaler scales the losses."""
        self.optimizer, self._steps, self._is_scaled = optimizer, steps, is_scaled
        self._losses = SeenLosses()
        self._first: float | None = None
        self._risen = 0
        self._is_said = False

    def forward_ended(self, losses: Any) -> None:
        if not self._is_said:
            self._losses.add(losses)

    def outer_step(self, reach: float) -> None:
        """End a period: its outer step has moved `reach` times the mean movement of the workers."""
        if self._is_said:
            return
        loss, late = self._losses.of_script(is_scaled=self._is_scaled())
        self._losses = SeenLosses()
        if late is not None:
            loss = late.value() if late.is_there() else None
        if loss is None:
            return
        if self._first is None:
            self._first = loss
            return
        has_risen = not loss <= self._first and reach > 1
        self._risen = self._risen + 1 if has_risen else 0
        if self._risen == PERIODS:
            self._is_said = True
            tell(
                f"quorate: the loss has risen to {loss:.4g} at step {self._steps()}, above the {self._first:.4g} of "
                f"the first period. The last outer step moved {reach:.1f} times the mean movement of the workers. "
                'Leave outer_rate and outer_momentum unset, lower them, or set outer_gain="measured"\n'
            )
