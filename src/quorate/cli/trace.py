"""`quorate trace`: the timeline of a run's workers, as a file for a trace viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.core.errors import ConfigurationError
from quorate.report.reading.folders import find_run
from quorate.report.wording import counted

if TYPE_CHECKING:
    from quorate.report.trace import Profile


def trace(
    run: Annotated[str, typer.Argument(help="The folder of a run, or its name in runs/.", metavar="RUN")],
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write; compressed if it ends in .gz.", show_default="RUN/trace.json.gz", metavar="FILE"
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Add a trace of torch.profiler; may be repeated.", metavar="RANK=FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write the timeline of a run: who computed and who waited for whom, step by step."""
    from quorate.report.trace import write_trace

    folder = find_run(run)
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigurationError(f"--output {output}: there is no folder {output.parent}, or a folder of this name")
    written = write_trace(folder, output or folder / "trace.json.gz", [_profile(pair) for pair in profile or ()])
    if as_json:
        summary = {"path": str(written.path), "ranks": written.ranks, "steps": written.steps, "events": written.events}
        typer.echo(json.dumps(summary))
        return
    typer.echo(f"{written.path}: {counted(written.ranks, 'rank')}, {counted(written.steps, 'step')}")
    typer.echo("open it at https://ui.perfetto.dev or chrome://tracing")


def _profile(written: str) -> Profile:
    from quorate.report.trace import Profile

    rank, equals, file = written.partition("=")
    if not (equals and file and rank.isdecimal() and len(rank) < 10):
        raise ConfigurationError(f'--profile takes RANK=FILE, such as 0=profile.json, not "{written}"')
    return Profile.read(int(rank), Path(file))
