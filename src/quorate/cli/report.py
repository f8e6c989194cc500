"""`quorate report`: the page of a comparison or a run, made again from its records."""

from __future__ import annotations

from typing import Annotated

import typer

from quorate.cli.options import RELEVANT, SHARE
from quorate.core.quantities import share_from


def report(
    folder: Annotated[
        str, typer.Argument(help="The folder of a run or comparison, or its name in runs/.", metavar="FOLDER")
    ],
    relevant: Annotated[str | None, typer.Option(help=RELEVANT, metavar=SHARE)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print summary.json in place of the path of the page.")
    ] = False,
) -> None:
    """Write the report of a run or a comparison from its records: page, summary and data."""
    from quorate.report.reading.folders import find_folder
    from quorate.report.summary import write_report

    run_folder = find_folder(folder)
    share = None if relevant is None else share_from(relevant)
    page = write_report(run_folder, relevant=share)
    typer.echo((run_folder / "summary.json").read_text(encoding="utf-8").rstrip() if as_json else str(page))
