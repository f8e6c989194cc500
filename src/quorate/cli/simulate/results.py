"""The results of `quorate simulate`: on the console a table, and a recorded run against its simulation; its files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from quorate.cli import tables
from quorate.cli.tables import echo_text, terminal_width, timed_bar
from quorate.core.errors import QuorateError
from quorate.core.telling import tell
from quorate.launch.run.folder import write_run
from quorate.report.wording import bytes_in_words, number_in_words, seconds_in_words, share_in_words
from quorate.simulation.grid import Row, SimulatedCell

if TYPE_CHECKING:
    from quorate.simulation.checked import Held


NOTHING = "–"
"""The cell without a figure; a column of such cells is left out."""
_KEYS = {"#", "strategy", "workers", "learners", "network", "imbalance", "record"}
"""Heads of the columns that name a row."""
_TOLD_FROM = 2.0
"""Seconds after which one row is worth a line of its own, where there is no terminal."""

_R = TypeVar("_R")
Columns = Sequence[tuple[str, Callable[[_R], str]]]
"""For each column its head, and the function from a row to a cell."""

FORMAT = 1
"""Version of `simulate.json`; rises when a key changes its meaning or is removed."""
FILE, PICTURE = "simulate.json", "simulate.svg"


def table(rows: Sequence[Row]) -> None:
    """Print a table of `rows` to stdout."""
    show(rows, _columns(rows), lambda row: row.is_recorded)


def show(rows: Sequence[_R], columns: Columns[_R], is_bold: Callable[[_R], bool] = lambda row: False) -> None:
    """Print a table of those columns that say something, to stdout."""
    columns = [(head, cell) for head, cell in columns if any(cell(row) != NOTHING for row in rows)]
    heads, cells = [head for head, _ in columns], [[cell(row) for _, cell in columns] for row in rows]
    keys = sum(1 for _ in takewhile(_KEYS.__contains__, heads))
    bold = {number for number, row in enumerate(rows) if is_bold(row)}
    typer.echo("\n".join(["", *tables.table(heads, cells, terminal_width(), keys=keys, bold=bold), ""]))


def _columns(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], str]]]:
    several_late = len({row.imbalance for row in rows}) > 1
    several_networks = len({row.network for row in rows}) > 1
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("strategy", lambda row: f"{row.strategy} (recorded)" if row.is_recorded else row.strategy),
        ("workers", lambda row: f"{row.workers:,}"),
        ("rounds/s", lambda row: _or(row.figures.rounds_per_second, number_in_words)),
        ("steps/s", lambda row: number_in_words(row.figures.steps_per_second)),
        ("of no-wait", lambda row: share_in_words(row.figures.no_wait_share)),
        ("contributors", lambda row: _or(row.figures.contributors, number_in_words)),
        ("stale p50", lambda row: _or(row.figures.staleness_p50, lambda age: f"{age:g}")),
        ("p95", lambda row: _or(row.figures.staleness_p95, lambda age: f"{age:g}")),
        ("waiting", lambda row: share_in_words(row.figures.waiting_share)),
        ("moving", lambda row: share_in_words(row.figures.communication_share)),
        ("a step", lambda row: seconds_in_words(row.figures.step_p50)),
        ("sent a step", lambda row: bytes_in_words(row.figures.bytes_per_step)),
        ("coding a step", lambda row: _or(row.figures.coding_per_step or None, seconds_in_words)),
        ("loss", lambda row: _or(row.loss, number_in_words)),
        ("quality", lambda row: _or(row.quality, number_in_words)),
    ]
    if several_late:
        columns.insert(2, ("imbalance", lambda row: row.imbalance or "none"))
    if several_networks:
        columns.insert(2, ("network", lambda row: row.network))
    return columns


def _or(value: float | None, words: Callable[[float], str]) -> str:
    return NOTHING if value is None else words(value)


def check_lines(held: Sequence[Held]) -> Iterator[str]:
    """Yield `the run itself, rounds per second: recorded 6.81, simulated 6.87, off by 0.9%`."""
    for figure in held:
        off = f"off by {abs(figure.off):.1%}" + ("" if figure.holds else ", which is more than 10%")
        words = f"recorded {number_in_words(figure.recorded)}, simulated {number_in_words(figure.simulated)}, {off}"
        yield f"the run itself, {figure.name}: {words}"


class Shown:
    """The progress of a simulation, as a context: a bar on a terminal, else a line for each long row."""

    def __init__(self) -> None:
        self._bar, self._task = timed_bar("simulating", 1.0)
        self._began, self._line = 0.0, ""

    def __enter__(self) -> Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._say_what_took_long()
        self._bar.stop()

    def begins(self, number: int, of: int, cell: SimulatedCell) -> Callable[[float], None]:
        return self.begins_with(number, of, cell.in_words)

    def begins_with(self, number: int, of: int, words: str) -> Callable[[float], None]:
        """Show the beginning of a row with these words; return a function that takes its share done."""
        self._say_what_took_long()
        self._began, self._line = time.monotonic(), f"[{number + 1}/{of}] {words}"
        if self._bar.disable:
            return lambda share: None
        self._bar.update(self._task, description=self._line, completed=number / of)
        return lambda share: self._bar.update(self._task, completed=(number + share) / of)

    def _say_what_took_long(self) -> None:
        seconds = time.monotonic() - self._began
        if self._bar.disable and self._line and seconds > _TOLD_FROM:
            tell(f"quorate: {self._line}: {seconds_in_words(seconds)}\n")


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
        echo_text(line)
    typer.echo(f"picture: {folder / PICTURE}\nfigures: {folder / FILE}")
