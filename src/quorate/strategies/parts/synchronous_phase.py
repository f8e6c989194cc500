"""A synchronous phase before the first local step, which ends for all workers in the same exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.strategies.parts.local_steps import LocalSteps


@dataclass(kw_only=True)
class SynchronousPhase(LocalSteps):
    """Local steps, and whether they have begun."""

    is_local: bool = kept("same", default=False)
    highest_rate: float = kept("same", default=0.0)
    """The highest learning rate of a synchronous step so far."""

    def agree_on_gradient(self, worker: Worker) -> None:
        """Replace the gradient by the mean of all workers', unless steps are local."""
        if not self.is_local:
            worker.gradient = worker.means.of_gradient().wait()

    def is_over(self, worker: Worker, after: int | Literal["decay"]) -> bool:
        """Whether the synchronous step that the worker has just made is the last one of all workers.

        Some workers may be further than others: each votes when it has made enough, and all turn in the same exchange.
        """
        rate = max(worker.replica.learning_rates)
        self.highest_rate = max(self.highest_rate, rate)
        return worker.means.vote(rate < self.highest_rate if after == "decay" else worker.step >= after - 1)

    def turn_local(self, worker: Worker) -> None:
        """Make local steps from the next one on."""
        self.is_local = True
        worker.means.step_alone(True)


def check_after(after: int | Literal["decay"]) -> None:
    """Raise `ConfigurationError` for a negative number of synchronous steps."""
    if isinstance(after, int) and after < 0:
        raise ConfigurationError(f'after is {after}; it must be a number of steps (at least 0), or "decay"')


def begins_local(worker: Worker, after: int | Literal["decay"]) -> bool:
    """Begin the phase; whether it is empty, so that the first step is a local one."""
    worker.means.step_alone(after == 0)
    worker.means.vote(after == 1)
    return after == 0
