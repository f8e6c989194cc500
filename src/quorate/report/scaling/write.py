"""The report of several numbers of workers: `summary.json` and the page; and of each number its own."""

from __future__ import annotations

from pathlib import Path

from quorate.launch.run.folder import SCALING
from quorate.report.page.parts import View
from quorate.report.scaling.figures import rows_of
from quorate.report.scaling.page import scaling_page
from quorate.report.scaling.reading import Found, read_scaling
from quorate.report.scaling.schema import ScalingSummary
from quorate.report.scaling.verdict import verdict_of, warnings_of
from quorate.report.summary import SUMMARY, summarize, write_files
from quorate.report.write import PAGE, write_report


def is_scaling(folder: Path) -> bool:
    """Whether `folder` is of several numbers of workers."""
    return (folder / SCALING).is_file()


def scaling_summary(folder: Path, found: Found) -> ScalingSummary:
    """Everything that is said of what was `found` in `folder`."""
    about, price = found.about, found.about.get("price")
    rows = rows_of(found.measured, found.pass_examples, price)
    cores = about.get("cores") if isinstance(about.get("cores"), int) else None
    plan = found.trained[0].plan
    return ScalingSummary(
        title=str(about.get("title") or folder.name),
        world=plan.world,
        strategy=plan.arms[0].name,
        verdict=verdict_of(rows, found.target, price),
        warnings=(*warnings_of(rows, cores), *about.get("cautions", ())),
        target=found.target,
        pass_examples=found.pass_examples,
        pass_words=found.pass_words,
        price=price,
        rows=rows,
        command=tuple(str(word) for word in about.get("command") or ()),
    )


def write_scaling(folder: Path) -> Path:
    """Write the reports of `folder`, and of each comparison in it; returns where the page of all is.

    Raises as `read_scaling`.
    """
    found = read_scaling(folder)
    for one in found.trained:
        write_report(one.plan.folder)
    summary = scaling_summary(folder, found)
    page = scaling_page(summary, View(summarize(found.trained[0].plan.folder)))
    write_files(folder, {SUMMARY: summary.model_dump_json(indent=1) + "\n", PAGE: page})
    return folder / PAGE
