"""The report of a folder: `summary.json`, `summary.md`, `data/*.csv`, and the page."""

from __future__ import annotations

from pathlib import Path

from quorate.report.summary import summarize, write_files, write_summary

PAGE = "report.html"


def write_report(folder: Path) -> Path:
    """Read the records in `folder` and write their report there; return the path of the page.

    Raises `ConfigurationError` if there is no run and no comparison.
    """
    from quorate.report.page.page import page

    summary = summarize(folder)
    write_summary(folder, summary)
    write_files(folder, {PAGE: page(summary)})
    return folder / PAGE
