"""Rows of a file that is still written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorate.records.records import rows_in


class LiveRows:
    """Reads the rows of a file that were added since the last look; a look costs no more than its new rows."""

    def __init__(self, path: Path) -> None:
        """The file need not exist yet."""
        self._path = path
        self._bytes_read, self._unfinished_line = 0, b""
        self._is_inside = False
        """Whether reading goes on in the middle of a line."""
        self.has_more = False
        """Whether the file had more bytes than the newest look has read."""

    def look(self, most_bytes: int = -1) -> list[dict[str, Any]]:
        """Return the new rows in order. A damaged line is skipped; an unfinished line is read when its end is there.

        At most `most_bytes` are read, unless it is below 0; the next look reads the others.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._bytes_read)
                new = file.read(most_bytes)
        except OSError:
            new = b""
        self.has_more = len(new) == most_bytes
        self._bytes_read += len(new)
        if self._is_inside:
            _, line_end, new = new.partition(b"\n")
            self._is_inside = not line_end
        *lines, self._unfinished_line = (self._unfinished_line + new).split(b"\n")
        return list(rows_in(lines))

    def skip(self, but_for_bytes: int) -> None:
        """Skip the new bytes except the last `but_for_bytes`, and the row in whose middle these begin."""
        try:
            begin = self._path.stat().st_size - but_for_bytes - 1
        except OSError:
            return
        if begin > self._bytes_read:
            self._bytes_read, self._unfinished_line, self._is_inside = begin, b"", True
