"""`step` and `distance` rows as objects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from quorate.core.records import Step
from quorate.report.reading.sound import is_count, is_number

_STEP_FIELDS = frozenset(field.name for field in fields(Step))
_SECONDS_OF = attrgetter("begin", "arrive", "end", "data", "delay", "compute", "encode", "wait", "decode", "update")
_COUNTS_OF = attrgetter("step", "round", "bytes_out", "bytes_in", "contributors", "staleness")
_NUMBERS = {"step": int, "round": int, "begin": float, "arrive": float, "end": float}


@dataclass(frozen=True, slots=True)
class Distance:
    """One `distance` row."""

    time: float
    distance: float
    """Of one replica from the mean of all."""
    norm: float
    """Of the mean."""
    optimizer: Any


def step_of(row: dict[str, Any]) -> Step | None:
    """A `step` row as an object; None where what every step has is missing. Later formats may say more."""
    row.pop("kind", None)
    try:
        step = Step(**row)
    except TypeError:
        try:
            step = Step(**{key: value for key, value in row.items() if key in _STEP_FIELDS})
        except TypeError:
            return None
    is_whole = type(step.begin) is float and type(step.arrive) is float and type(step.end) is float
    return step if (is_whole or _repaired(step)) and _is_sound(step) else None


def _is_sound(step: Step) -> bool:
    """Whether every value is one that there can be."""
    return (
        all(is_number(seconds) for seconds in _SECONDS_OF(step))
        and all(map(is_count, _COUNTS_OF(step)))
        and all(count is None or is_count(count) for count in (step.examples, step.tokens))
        and (step.loss is None or type(step.loss) is float or is_number(step.loss))
        and type(step.optimizer) is str
    )


def _repaired(step: Step) -> bool:
    """Make whole numbers of seconds floats; whether that is enough."""
    for name, kind in _NUMBERS.items():
        value = getattr(step, name)
        if type(value) is not kind:
            if not is_number(value):
                return False
            setattr(step, name, kind(value))
    return True
