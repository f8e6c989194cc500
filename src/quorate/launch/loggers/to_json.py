"""`scalars.jsonl` in the run's folder: a JSON object for each number, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "scalars.jsonl"


class JsonFile:
    """Lines of `{"step": 3, "name": "loss", "value": 0.5}`; a run that is gone on with appends. What is not finite is
    null: JSON has no word for it."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def add(self, name: str, value: float, step: int) -> None:
        is_finite = abs(value) < float("inf")
        told = {"step": step, "name": name, "value": value if is_finite else None}
        self._file.write(json.dumps(told) + "\n")
        self._file.flush()

    def close(self, *, is_well: bool) -> None:
        self._file.close()


def opened(folder: Path, about: Mapping[str, Any]) -> JsonFile:
    """The file in `folder`."""
    return JsonFile(folder / FILE)
