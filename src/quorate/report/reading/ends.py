"""The first and the last rows of a file that is too long to be read in full in passing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quorate.records.records import rows_in

HEAD_BYTES = 8 << 10


def first_and_last_rows(path: Path, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the rows in the first `HEAD_BYTES` and the last `most_bytes`; the two that are cut are skipped."""
    with open(path, "rb") as file:
        lines = file.read(HEAD_BYTES).splitlines()
        file.seek(-most_bytes, os.SEEK_END)
        lines += file.read().splitlines()
    return rows_in(lines)
