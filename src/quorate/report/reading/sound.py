"""What a file of a run says, held against what it can say: what is of another kind counts as missing.

Run folders come from other machines and other versions, are cut off by full disks, and are edited by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

MOST = 1e15
"""The greatest number that is believed, of seconds, bytes, examples or anything else: Floats count whole up to here."""

Kind = Callable[[object], bool]


def is_number(value: object) -> bool:
    """A finite one that can be reckoned with."""
    return type(value) in (int, float) and -MOST <= value <= MOST  # type: ignore[operator]


def has_numbers(row: Mapping[str, Any], *names: str) -> bool:
    """Whether all of these are there, and numbers."""
    return all(is_number(row.get(name)) for name in names)


def is_count(value: object) -> bool:
    """A whole number from 0 on."""
    return type(value) is int and 0 <= value <= MOST


def is_text(value: object) -> bool:
    """A text."""
    return isinstance(value, str)


def is_object(value: object) -> bool:
    """A JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> bool:
    """A JSON list."""
    return isinstance(value, list)


def _texts_or_nothing(value: object) -> bool:
    return isinstance(value, dict) and all(one is None or isinstance(one, str) for one in value.values())


def _is_commit(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("commit"), str) and type(value.get("dirty")) in _YES_NO


def is_metric(value: object) -> bool:
    """A name, and which direction is better."""
    is_whole = isinstance(value, dict) and value.keys() == {"name", "higher_is_better"}
    return is_whole and is_text(value["name"]) and type(value["higher_is_better"]) is bool  # type: ignore[index]


_YES_NO = (bool, type(None))

RUN: Mapping[str, Kind] = {
    "workers": lambda value: is_count(value) and value <= 10**6,  # type: ignore[operator]
    "strategy": is_text,
    "settings": is_object,
    "seed": is_count,
    "learning_rate_factor": is_number,
    "script": is_text,
    "arguments": is_list,
    "command": is_list,
    "versions": _texts_or_nothing,
    "git": _is_commit,
    "metric": is_metric,
    "cores": is_count,
    "seconds": is_number,
    "target": is_number,
    "equal": is_text,
    "warm_up_steps": is_count,
    "subject": is_object,
}
"""By key of `run.json` and of `compare.json`."""
OUTCOME: Mapping[str, Kind] = {
    "status": lambda value: type(value) is int and abs(value) < 2**31,
    "seconds": is_number,
    "why": is_text,
}


def sound(said: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """`said` without what is not of its kind; keys that `kinds` does not name stay."""
    return {key: value for key, value in said.items() if key not in kinds or value is None or kinds[key](value)}


def finite(value: Any) -> Any:
    """`value` as JSON has it, where NaN and infinity, and whole numbers beyond all measure, are text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if type(value) is int and abs(value) > 2**63:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
