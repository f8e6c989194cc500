"""Tables (`.parquet`), by pyarrow."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from quorate.core.errors import MissingExtra
from quorate.data.files.kinds import Kind, Opened


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("parquet files need pyarrow; install it with: pip install pyarrow") from None
    return pyarrow.parquet


class _Rows:
    """The rows of a table. The group of rows that was read last is kept, as a file is read in groups."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._file = _parquet().ParquetFile(path)
        about = self._file.metadata
        self._ends: list[int] = []
        for group in range(about.num_row_groups):
            self._ends.append((self._ends[-1] if self._ends else 0) + about.row_group(group).num_rows)
        self._columns = list(columns) or None
        self._group, self._rows = -1, list[dict[str, Any]]()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        group = bisect.bisect_right(self._ends, number)
        if group != self._group:
            self._rows = self._file.read_row_group(group, columns=self._columns).to_pylist()
            self._group = group
        return self._rows[number - (self._ends[group - 1] if group else 0)]


@dataclass(frozen=True, kw_only=True)
class Parquet(Kind):
    """Tables; an example is a row, a dict by column. Rows of one group are read together: shuffled reading costs a
    group for each."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    columns: tuple[str, ...] = ()
    """Columns to read; none: all."""

    def open(self, path: Path, name: str) -> Opened:
        return _Rows(path, tuple(self.columns))
