"""The files of `quorate simulate`, and its closing lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from quorate.core.errors import QuorateError
from quorate.launch.run.folder import write_run

FORMAT = 1
"""Version of `simulate.json`; rises when a key changes its meaning or is removed."""
FILE, PICTURE = "simulate.json", "simulate.svg"


def begin(folder: Path, plan: Mapping[str, Any]) -> None:
    """Make the folder, and write the plan."""
    write_run(folder, None, {"format": FORMAT, "command": ["quorate", *sys.argv[1:]], **plan})
    (folder / "run.json").replace(folder / FILE)


def keep(folder: Path, also: Path | None, results: Mapping[str, Any], draw: Callable[[], str]) -> dict[str, Any]:
    """Write the results beside the plan, and the picture, into `also` as well; return the plan with the results.

    Raises `QuorateError` where it cannot be written.
    """
    about: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8")) | dict(results)
    try:
        (folder / FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        drawn = draw()
        for path in (folder / PICTURE, *([] if also is None else [also])):
            path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise QuorateError(f"what was simulated cannot be kept: {error.strerror or error} ({error.filename})") from None
    return about


def tell_kept(
    about: Mapping[str, Any], folder: Path, table: Callable[[], None], lines: Iterable[str], *, as_json: bool
) -> None:
    """Print the results as JSON, or as table, `lines` and paths."""
    if as_json:
        typer.echo(json.dumps(about, indent=2))
        return
    table()
    for line in lines:
        typer.echo(line)
    typer.echo(f"picture: {folder / PICTURE}\nfigures: {folder / FILE}")
