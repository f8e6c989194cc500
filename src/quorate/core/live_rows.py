"""Rows of a file that is still written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorate.core.records import rows_in


class LiveRows:
    """Each look at the file gives those rows that are new; rows are small, and looks are cheap."""

    def __init__(self, path: Path) -> None:
        """The file need not be there yet."""
        self._path = path
        self._read, self._rest = 0, b""

    def look(self) -> list[dict[str, Any]]:
        """The new rows in order; a line that is damaged is skipped, and one that is cut off is read with its end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return []
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return list(rows_in(lines))
