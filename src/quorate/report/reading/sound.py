"""Checks of the values in files of a run: values of wrong types count as missing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST = 1e15
"""The greatest number that is accepted, of seconds, bytes, examples or anything else: floats are whole up to here."""


def is_number(value: object) -> bool:
    """Return whether it is a finite number within bounds."""
    return type(value) in (int, float) and -MOST <= value <= MOST  # type: ignore[operator]


def has_numbers(row: Mapping[str, Any], *names: str) -> bool:
    """Return whether all of these are present, and numbers."""
    return all(is_number(row.get(name)) for name in names)


def is_count(value: object) -> bool:
    """Return whether it is a whole number from 0 on."""
    return type(value) is int and 0 <= value <= MOST


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no file, or no object in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def finite(value: Any) -> Any:
    """Return `value` for JSON, where NaN and infinity, and whole numbers beyond 64 bits, are text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if type(value) is int and abs(value) > 2**63:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
