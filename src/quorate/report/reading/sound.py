"""What a file of a run says, held against what it can say: what is of another kind counts as missing.

Run folders come from other machines and other versions, are cut off by full disks, and are edited by hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST = 1e15
"""The greatest number that is believed, of seconds, bytes, examples or anything else: Floats count whole up to here."""


def is_number(value: object) -> bool:
    """A finite one that can be reckoned with."""
    return type(value) in (int, float) and -MOST <= value <= MOST  # type: ignore[operator]


def has_numbers(row: Mapping[str, Any], *names: str) -> bool:
    """Whether all of these are there, and numbers."""
    return all(is_number(row.get(name)) for name in names)


def is_count(value: object) -> bool:
    """A whole number from 0 on."""
    return type(value) is int and 0 <= value <= MOST


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no file, or no object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def finite(value: Any) -> Any:
    """`value` as JSON has it, where NaN and infinity, and whole numbers beyond all measure, are text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if type(value) is int and abs(value) > 2**63:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
