"""Local steps: their settings, the period from one mean of all to the next, and how a replica goes on from a mean.

Workers do not tell each other that a mean is due. Each counts since the last mean, which ended for all at the same
moment: its own steps, its own examples, or the seconds that have passed for it. With seconds nobody waits at a mean for
longer than one step of the slowest worker, however unequal the workers are, and each counts by the steps it has made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.quantities import seconds_from
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat

_EXAMPLES = re.compile(r"\s*([0-9]+)\s*examples?\s*")


@dataclass(frozen=True)
class Period:
    """A number of steps, of examples, or of seconds."""

    count: float
    unit: Literal["steps", "examples", "seconds"]

    def __mul__(self, factor: float) -> Period:
        return Period(self.count * factor, self.unit)

    def __truediv__(self, divisor: float) -> Period:
        return Period(self.count / divisor, self.unit)


def period_from(setting: int | str, name: str = "sync_every") -> Period:
    """The period that a user writes as a number of steps, `"4096 examples"`, or a duration such as `"30s"`.

    Raises `ConfigurationError` for anything else, and for a period that is not above 0.
    """
    if isinstance(setting, int) and not isinstance(setting, bool):
        period = Period(setting, "steps")
    elif isinstance(setting, str) and (examples := _EXAMPLES.fullmatch(setting)) is not None:
        period = Period(int(examples[1]), "examples")
    elif isinstance(setting, str) and setting.strip()[-1:] == "s":
        period = Period(seconds_from(setting, name), "seconds")
    else:
        period = Period(math.nan, "steps")
    if not period.count > 0:
        raise ConfigurationError(
            f'{name} is {setting!r}; it must be a number of steps (at least 1), "4096 examples", or a duration '
            'such as "30s"'
        )
    return period


@dataclass(frozen=True, kw_only=True)
class LocalStepSettings(Strategy):
    """The settings that strategies of local steps have in common; their hooks are their own."""

    replicas = "meet"

    sync_every: int | str = 8
    """H: number of local steps between two means, a number of examples ("4096 examples"), or a time ("30s")."""
    momentum: Literal["keep", "average", "reset"] = "keep"
    """Optimizer state at a mean of parameters: each worker keeps its own, it is averaged, or it is reset."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "mean"
    """Buffers (such as BatchNorm statistics) used at an evaluation and at the end: those of each worker, their mean, or
    those of rank 0."""
    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others continue without a dead worker and its steps since the last mean, or all workers stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        period_from(self.sync_every)

    @property
    def period(self) -> Period:
        """H."""
        return period_from(self.sync_every)

    @property
    def acts_on_pieces(self) -> bool:
        return self.period.unit == "steps"


@dataclass(frozen=True, kw_only=True)
class LocalRoundSettings(Strategy):
    """The settings that strategies of local steps on rounds have in common; their hooks are their own."""

    replicas = "meet"
    meets = "rounds"

    grace: float = 0.05
    """Seconds within which a worker must answer; otherwise it is left out until it answers. Large vectors get extra
    time."""
    patience: float = 10.0
    """Seconds of silence after which a worker no longer counts in a mean."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "mean"
    """Buffers (BatchNorm statistics) at an evaluation and at the end, as in `local-sgd`."""
    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others continue without a dead worker and the steps it had not contributed, or all workers stop."""

    @property
    def bounds(self) -> dict[str, Any]:
        """The settings of rounds for workers that do not answer."""
        return {"grace": self.grace, "patience": self.patience}


@dataclass
class LocalSteps:
    """The steps of one worker since the last mean; the state of a strategy of local steps, or a part of it."""

    steps: float = kept("average", default=0)
    done: float = kept("average", default=0.0)
    """The sum of the weights of these steps."""
    examples: float = kept("average", default=0)
    began: float | None = kept("drop", default=None)
    """When the first step after the last mean began."""

    def count(self, worker: Worker, period: Period) -> None:
        """Count the step that the worker has just made."""
        self.add(worker, worker.weight, worker.examples if period.unit == "examples" else 0)

    def add(self, worker: Worker, weight: float, examples: float) -> None:
        """Count a step of that weight."""
        self.steps += 1
        self.done += weight
        self.examples += examples
        if self.began is None:
            self.began = worker.step_began

    def is_due(self, worker: Worker, period: Period) -> bool:
        """Whether the next mean is due for this worker."""
        if period.unit == "seconds":
            return self.began is not None and worker.now() - self.began >= period.count
        return (self.steps if period.unit == "steps" else self.examples) >= period.count

    def weight(self, period: Period) -> float:
        """The weight of this replica in the next mean: 1 after a whole number of steps, else the steps or examples.

        0 where the worker has made no step since the last mean.
        """
        if period.unit == "steps":
            return self.done / period.count
        return self.examples if period.unit == "examples" else self.done

    def restart(self) -> None:
        """Count from 0, as after a mean."""
        self.steps, self.done, self.examples, self.began = 0, 0.0, 0, None


def mean_of_all(worker: Worker, x: Flat, weight: float) -> Mean:
    """Return the weighted mean of the vectors of all workers; waits for all."""
    return Mean(mean=worker.means.of(x, weight=weight).wait())


def take_mean(worker: Worker, mean: Flat, momentum: str, *, only: Sequence[int] | None = None) -> None:
    """Write a mean of replicas (with `only`, of these tensors) into the model, and record the distance of the model.

    For the optimizer's state, `momentum` "average" writes its mean, "reset" deletes it, and "keep" leaves it alone.
    """
    worker.measure_distance(mean, only=only)
    worker.replica.write(mean, moments=momentum == "average", only=only)
    if momentum == "reset":
        worker.replica.forget_moments(only=only)


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
