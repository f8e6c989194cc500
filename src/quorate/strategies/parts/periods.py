"""The period from one mean to the next, in steps, examples, or seconds; pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from

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
        found = Period(setting, "steps")
    elif isinstance(setting, str) and (examples := _EXAMPLES.fullmatch(setting)) is not None:
        found = Period(int(examples[1]), "examples")
    elif isinstance(setting, str) and setting.strip()[-1:] == "s":
        found = Period(seconds_from(setting, name), "seconds")
    else:
        found = Period(math.nan, "steps")
    if not found.count > 0:
        raise ConfigurationError(
            f'{name} is {setting!r}; it is a number of steps from 1 on, "4096 examples", or a duration such as "30s"'
        )
    return found
