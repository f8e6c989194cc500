"""The results of cases that have been played, from which an interrupted `make compatibility` goes on."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.compatibility.choices import Choice
from tests.compatibility.laws import Verdict

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "compatibility"
CODE = ("src/quorate", "tests/compatibility", "tests/support")
"""The folders whose Python files a result depends on."""


def fingerprint() -> str:
    """Return a name of this code and of the versions of Python and torch that play it."""
    digest = hashlib.sha256(f"{platform.python_version()} {torch.__version__}".encode())
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def key_of(function: Callable[..., Any], case: Any) -> str:
    """Return the key of a function's result for a case: the names of all that is in it."""
    return json.dumps([function.__name__, _names(case)])


def words_of(case: Any) -> str:
    """Return the names of all that is in a case, in a line."""
    return " + ".join(re.findall(r'"(.*?)"', json.dumps(_names(case), ensure_ascii=False)))


def _names(case: Any) -> Any:
    if isinstance(case, Choice):
        return case.name
    return case if isinstance(case, str) else [*map(_names, case)]


class Journal:
    """Results by key, each of which is a line of a file as soon as it is there.

    Args:
        path: The file; it is made with the first result.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._results = dict(_lines(path.read_text(encoding="utf-8").split("\n"))) if path.is_file() else {}

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def add(self, key: str, result: Verdict | str) -> None:
        """Keep a result."""
        self._results[key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        value = asdict(result) if isinstance(result, Verdict) else result
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps([key, value], ensure_ascii=False))  # begins a line: the last may be cut

    def clear(self) -> None:
        """Forget all results, and remove the file."""
        self._results.clear()
        self.path.unlink(missing_ok=True)


def _lines(lines: Sequence[str]) -> list[tuple[str, Any]]:
    results = []
    for line in lines:
        try:
            key, value = json.loads(line)
        except ValueError:  # of a run that was killed while it wrote
            continue
        results.append((key, Verdict(**value) if isinstance(value, dict) else value))
    return results
