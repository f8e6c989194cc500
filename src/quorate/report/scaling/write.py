"""The report of several numbers of workers: `summary.json` and the page; and the report of each number."""

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
    """Return whether `folder` is of several numbers of workers."""
    return (folder / SCALING).is_file()


def scaling_summary(folder: Path, contents: Found) -> ScalingSummary:
    """Return the summary of the contents of `folder`."""
    about, price = contents.about, contents.about.get("price")
    rows = rows_of(contents.measured, contents.pass_examples, price)
    cores = about.get("cores") if isinstance(about.get("cores"), int) else None
    plan = contents.trained[0].plan
    return ScalingSummary(
        title=str(about.get("title") or folder.name),
        world=plan.world,
        strategy=plan.arms[0].name,
        verdict=verdict_of(rows, contents.target, price),
        warnings=(*warnings_of(rows, cores), *about.get("cautions", ())),
        target=contents.target,
        pass_examples=contents.pass_examples,
        pass_words=contents.pass_words,
        price=price,
        rows=rows,
        command=tuple(str(word) for word in about.get("command") or ()),
    )


def write_scaling(folder: Path) -> Path:
    """Write the reports of `folder`, and of each comparison in it; return the path of the page of all.

    Raises as `read_scaling`.
    """
    contents = read_scaling(folder)
    for entry in contents.trained:
        write_report(entry.plan.folder)
    summary = scaling_summary(folder, contents)
    page = scaling_page(summary, View(summarize(contents.trained[0].plan.folder)))
    write_files(folder, {SUMMARY: summary.model_dump_json(indent=1) + "\n", PAGE: page})
    return folder / PAGE
