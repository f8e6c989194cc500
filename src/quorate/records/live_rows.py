"""Rows of a file that is still written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorate.records.records import rows_in


class LiveRows:
    """Each look at the file gives those rows that are new; rows are small, and looks at a file that is followed from
    its beginning are cheap."""

    def __init__(self, path: Path) -> None:
        """The file need not be there yet."""
        self._path = path
        self._read, self._rest = 0, b""
        self._is_inside = False
        """Whether reading goes on in the middle of a line."""
        self.has_more = False
        """Whether there was more than the newest look has read."""

    def look(self, most_bytes: int = -1) -> list[dict[str, Any]]:
        """The new rows in order; a line that is damaged is skipped, and one that is cut off is read with its end.

        With `most_bytes` from 0 on no more are read: the rest is for the next look.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                new = file.read(most_bytes)
        except OSError:
            new = b""
        self.has_more = len(new) == most_bytes
        self._read += len(new)
        if self._is_inside:
            _, found, new = new.partition(b"\n")
            self._is_inside = not found
        *lines, self._rest = (self._rest + new).split(b"\n")
        return list(rows_in(lines))

    def skip(self, but_for_bytes: int) -> None:
        """Pass over what is new, but for so many bytes at its end; a row in the middle of which that begins as well."""
        try:
            begin = self._path.stat().st_size - but_for_bytes - 1
        except OSError:
            return
        if begin > self._read:
            self._read, self._rest, self._is_inside = begin, b"", True
