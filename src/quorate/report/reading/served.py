"""The work of servers, from their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.records.rows import Served
from quorate.report.reading.rows import row_of
from quorate.report.reading.sound import is_count, is_number


def served_of(row: Mapping[str, Any]) -> Served | None:
    """Return a `served` row as an object; None if a value is missing or damaged."""
    served = row_of(Served, row)
    if served is None or served.seconds < 0.0 or served.busy < 0.0:
        return None
    counts = ((served.taken or (), 2), (served.dropped or (), 2), (served.given or (), 3))
    is_sound = all(len(values) == length and all(map(is_count, values)) for rows, length in counts for values in rows)
    counted = served.counted or ()
    is_sound &= len(counted) == len(served.taken or ()) and all(
        is_number(weight) and weight >= 0.0 for weight in counted
    )
    return served if is_sound else None
