"""Rows of records as a test wants them, whole or not."""

from __future__ import annotations

from typing import Any

from quorate.records.rows import Row


class RawRow(Row):
    """A row of `kind` with these values, and no others."""

    def __init__(self, kind: str, **values: Any) -> None:
        self._said = {"kind": kind, **values}

    def as_json(self) -> dict[str, Any]:
        return dict(self._said)
