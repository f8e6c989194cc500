"""Local steps: their settings, when the next mean of all is due, and how a replica goes on from it.

Workers do not tell each other that a mean is due. Each counts since the last mean, which ended for all at the same
moment: its own steps, its own examples, or the seconds that have passed for it. With seconds nobody waits at a mean for
longer than one step of the slowest worker, however unequal the workers are, and each counts by the steps it has made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.resize import kept
from quorate.core.strategy import Mean, Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.periods import Period, period_from


@dataclass(frozen=True, kw_only=True)
class LocalStepSettings(Strategy):
    """The settings that strategies of local steps have in common; their hooks are their own."""

    replicas = "meet"

    sync_every: int | str = 8
    """H: local steps between two means; or "4096 examples", or a time such as "30s"."""
    momentum: Literal["keep", "average", "reset"] = "keep"
    """What becomes of what the optimizer keeps, at a mean: each worker's own stays, it is averaged, or begins anew."""
    buffers: Literal["none", "mean", "rank0"] = "mean"
    """What buffers (BatchNorm's statistics) are at an evaluation and at the end: each one's own, the mean, rank 0's."""
    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others go on without a worker that has died, and its steps since the last mean; or all stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        period_from(self.sync_every)

    @property
    def period(self) -> Period:
        """H."""
        return period_from(self.sync_every)


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
        self.steps += 1
        self.done += worker.weight
        if period.unit == "examples":
            self.examples += worker.replica.examples
        if self.began is None:
            self.began = worker.replica.step_began

    def is_due(self, worker: Worker, period: Period) -> bool:
        """Whether the next mean is due for this worker."""
        if period.unit == "seconds":
            return self.began is not None and worker.clock.now() - self.began >= period.count
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
    """The weighted mean of what all workers give; blocks until all have come."""
    return Mean(mean=worker.peers.mean(x, weight=weight).wait())


def take_mean(worker: Worker, mean: Flat, momentum: str, *, only: Sequence[int] | None = None) -> None:
    """Write a mean of replicas (with `only`, of these tensors) into the model, and record how far the model was away.

    `momentum` says what becomes of the optimizer's state: "average" writes the mean of it, "reset" forgets it.
    """
    worker.replica.measure_distance(mean, only=only)
    worker.replica.write(mean, moments=momentum == "average", only=only)
    if momentum == "reset":
        worker.replica.forget_moments(only=only)
