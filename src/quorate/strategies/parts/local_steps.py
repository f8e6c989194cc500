"""When workers that step by themselves come together: every so many steps, examples, or seconds.

Nobody tells anybody that it is time. Each worker counts since the last mean, which ended for all at the same moment:
its own steps, its own examples, or the seconds that have passed for it. So with seconds nobody waits at a mean for
longer than one step of the slowest, however unequal the workers are, and each counts there by what it has done.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, Protocol

from quorate.core.contracts import Clock
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from
from quorate.core.resize import kept

_EXAMPLES = re.compile(r"\s*([0-9]+)\s*examples?\s*")


@dataclass(frozen=True)
class Every:
    """So many of one unit."""

    count: float
    unit: Literal["steps", "examples", "seconds"]


def every(setting: int | str, name: str = "sync_every") -> Every:
    """As a user writes it: a number of steps, `"4096 examples"`, or a duration such as `"30s"`.

    Raises `ConfigurationError` for what is none of these, or not above 0.
    """
    if isinstance(setting, int) and not isinstance(setting, bool):
        found = Every(setting, "steps")
    elif isinstance(setting, str) and (examples := _EXAMPLES.fullmatch(setting)) is not None:
        found = Every(int(examples[1]), "examples")
    elif isinstance(setting, str) and setting.strip()[-1:] == "s":
        found = Every(seconds_from(setting, name), "seconds")
    else:
        found = Every(math.nan, "steps")
    if not found.count > 0:
        raise ConfigurationError(
            f'{name} is {setting!r}; it is a number of steps from 1 on, "4096 examples", or a duration such as "30s"'
        )
    return found


class Stepping(Protocol):
    """What of a worker is counted."""

    @property
    def clock(self) -> Clock: ...

    @property
    def examples(self) -> int:
        """Of the step that is being made."""
        ...

    @property
    def step_began(self) -> float:
        """When it began, by the clock."""
        ...


@dataclass
class LocalSteps:
    """What a worker has done since the last mean; the state of a strategy of local steps, or a part of it."""

    steps: float = kept("average", default=0)
    done: float = kept("average", default=0.0)
    """What these steps count, all together."""
    examples: float = kept("average", default=0)
    began: float | None = kept("drop", default=None)
    """When the first step after the last mean began."""

    def count(self, worker: Stepping, period: Every, weight: float = 1.0) -> None:
        """A step was made, which counts `weight`."""
        self.steps += 1
        self.done += weight
        if period.unit == "examples":
            self.examples += worker.examples
        if self.began is None:
            self.began = worker.step_began

    def is_due(self, worker: Stepping, period: Every) -> bool:
        """Whether this worker is to come to the next mean."""
        if period.unit == "seconds":
            return self.began is not None and worker.clock.now() - self.began >= period.count
        return (self.steps if period.unit == "steps" else self.examples) >= period.count

    def weight(self, period: Every) -> float:
        """What this worker's replica counts in the next mean: 1 after a whole number of steps, else what it has done.

        0 where it has made no step since the last one.
        """
        if period.unit == "steps":
            return self.done / period.count
        return self.examples if period.unit == "examples" else self.done

    def restart(self) -> None:
        """A mean is over."""
        self.steps, self.done, self.examples, self.began = 0, 0.0, 0, None
