"""`quorate.report`: the report of a run or a comparison, written, and shown where a notebook asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.notebook.progress import framed
from quorate.report.reading.folders import find_folder

if TYPE_CHECKING:
    from quorate.notebook.launching import Launched

_TALL = 900


class Report:
    """The page at `path`; the last expression of a notebook's cell shows it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of `summary.json`; docs/reference/summary.md describes its keys."""
        contents: dict[str, Any] = json.loads((self.path.parent / "summary.json").read_text(encoding="utf-8"))
        return contents

    def _repr_html_(self) -> str:
        return framed(self.path.read_text(encoding="utf-8"), _TALL)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"


def report(run: Launched | Path | str) -> Report:
    """Write the report of a run or a comparison into its folder, as `quorate report` does.

    The report is the page, `summary.json`, `summary.md` and the data of each chart.

    Args:
        run: The result of `quorate.launch`, a folder, or a name in `runs`.

    Returns:
        The report; the last expression of a notebook's cell shows its page.

    Raises:
        ConfigurationError: There is no such run.

    Cost: the records are read once, some 10 µs a row.

    Example:
        >>> run = quorate.launch(quorate.join, virtual=2, progress=False)
        >>> quorate.report(run).path.name
        'report.html'
    """
    from quorate.report.summary import write_report

    return Report(write_report(find_folder(str(getattr(run, "folder", run)))))
