"""What servers did, as their rows say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.records.served_rows import Served
from quorate.report.reading.rows import row_of
from quorate.report.reading.sound import is_count, is_number


def served_of(row: Mapping[str, Any]) -> Served | None:
    """A `served` row as an object; None where something is missing, or is none."""
    found = row_of(Served, row)
    if found is None or found.seconds < 0.0 or found.busy < 0.0:
        return None
    counts = ((found.taken or (), 2), (found.dropped or (), 2), (found.given or (), 3))
    is_sound = all(len(one) == length and all(map(is_count, one)) for rows, length in counts for one in rows)
    counted = found.counted or ()
    is_sound &= len(counted) == len(found.taken or ()) and all(is_number(one) and one >= 0.0 for one in counted)
    return found if is_sound else None
