"""`quorate watch`: a live page of a run in the browser, or its text form."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.tables import paragraphs
from quorate.records.records import ranks_in
from quorate.report.reading.folders import find_folder, find_run

_EVERY = 1.0
"""Seconds between two readings."""


def watch(
    run: Annotated[str, typer.Argument(help="The folder of a run, or its name in runs/.", metavar="RUN")],
    text: Annotated[bool, typer.Option("--text", help="Show it on the terminal, not as a page.")] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", help="Port of the page on this machine; 0: any free one.", min=0, max=65535, metavar="N"
        ),
    ] = 0,
) -> None:
    """Watch a run that is running or has ended: loss, speed, late workers, rounds, bytes, deaths and joins."""
    folder = _watched(run)
    with suppress(KeyboardInterrupt):
        if text:
            _follow(folder)
        else:
            _serve(folder, port)


def _watched(name: str) -> Path:
    """Return the folder of a run, which may have no records yet. Raises `ConfigurationError` without a run."""
    folder = find_folder(name)
    if (folder / "run.json").is_file() and not ranks_in(folder):
        return folder
    return find_run(name)


def _serve(folder: Path, port: int) -> None:
    from quorate.report.live.server import LiveServer

    with LiveServer(folder, port=port) as server:
        typer.echo(server.address)
        typer.echo(
            "Ctrl-C ends it. From another machine: ssh -L PORT:127.0.0.1:PORT HOST, then the same address.".replace(
                "PORT", str(server.port)
            )
        )
        while True:
            time.sleep(_EVERY)


def _follow(folder: Path) -> None:
    """Print the state of the run: on a terminal every second until its end, elsewhere once."""
    from quorate.report.live.run import LiveRun
    from quorate.report.live.words import run_in_words

    live = LiveRun(folder)
    live.look()
    while live.has_more:
        live.look()
    if not sys.stdout.isatty():
        typer.echo("\n".join(paragraphs(*run_in_words(live))))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as shown:
        while True:
            shown.update(Text("\n".join(paragraphs(*run_in_words(live)))), refresh=True)
            if live.has_ended:
                return
            time.sleep(_EVERY)
            live.look()
