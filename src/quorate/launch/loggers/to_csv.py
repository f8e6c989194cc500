"""`scalars.csv` in the run's folder: a line for each number, with its step and name."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "scalars.csv"


class CsvFile:
    """Lines of `step,name,value` behind one with these words; a run that is gone on with appends."""

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self._lines = csv.writer(self._file)
        if is_new:
            self._lines.writerow(("step", "name", "value"))

    def add(self, name: str, value: float, step: int) -> None:
        self._lines.writerow((step, name, value))
        self._file.flush()

    def close(self, *, is_well: bool) -> None:
        self._file.close()


def opened(folder: Path, about: Mapping[str, Any]) -> CsvFile:
    """The file in `folder`."""
    return CsvFile(folder / FILE)
