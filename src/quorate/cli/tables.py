"""Tables and paragraphs that fit into the width of a terminal, and in which no number breaks over two lines."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import typer

WIDEST_TEXT = 100
"""Characters up to which a paragraph fills a line."""
_NARROWEST_TEXT = 24
"""Characters that a column of text needs; in a narrower one, the text goes below its row."""
_QUANTITY = re.compile(r"\d(?: (?:h|min) \d+)? (?:[kMG]?B|[mµ]?s|min|h|days?|%)(?!\w)|(?<=[\w)}]) [-+*/] (?=[\w({])")
"""Text in which no line ends: between a number and its unit, and beside the sign of an operation."""
_NO_BREAK = "\xa0"
_GAP = "  "
_LEVELS = 3
_MOST_PARTS = 3
"""Tables below each other that one table may be divided into."""


def terminal_width() -> int:
    """Return the width of the terminal: `COLUMNS` if it is set, and 80 in a pipe."""
    return shutil.get_terminal_size((80, 24)).columns


def text_width() -> int:
    """Return the width of paragraphs."""
    return min(WIDEST_TEXT, terminal_width())


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Return the lines of a paragraph, of whole words and numbers with their units.

    Lines after the first begin with `hanging`, which is `indent` by default.
    """
    joined = _QUANTITY.sub(lambda match: match[0].replace(" ", _NO_BREAK), text)
    rest = indent if hanging is None else hanging
    lines = textwrap.wrap(
        joined, width, initial_indent=indent, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def paragraphs(*texts: str) -> Iterator[str]:
    """Yield the lines of paragraphs; one that begins with a label, such as `caution:`, has later lines indented."""
    for text in texts:
        yield from wrapped(text, text_width(), hanging="  " if text[:1].islower() else "") or [""]


def echo_text(text: str) -> None:
    """Print the paragraphs of `text`, each of which is a line, to stdout."""
    typer.echo("\n".join(paragraphs(*text.split("\n"))))


def timed_bar(description: str, total: float) -> tuple[Any, Any]:
    """Return a progress bar of rich on stderr, with the time left, and its task; it is disabled off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    return bar, bar.add_task(description, total=total)


def text_table(rows: Sequence[Sequence[str]], width: int, indent: str = "  ") -> Iterator[str]:
    """Yield the lines of rows whose last column is text, which is wrapped."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for row in rows:
        start = indent + "".join(f"{cell:<{wide}}{_GAP}" for cell, wide in zip(row, widths, strict=False))
        if width - len(start) >= _NARROWEST_TEXT:
            yield from wrapped(row[-1], width, start, " " * len(start)) or [start.rstrip()]
        else:
            yield start.rstrip()
            yield from wrapped(row[-1], width, f"{indent}    ")


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keys: int = 1, bold: Container[int] = ()
) -> list[str]:
    """Return the lines of a table of at most `width` characters; cells are never cut.

    A table that is too wide has heads of several lines, and remarks after a comma or in parentheses below their
    values. If that does
    not suffice, it is divided into up to 3 tables, which repeat the first `keys` columns. Otherwise each row becomes a
    record: its first cell, and a line `column: value` for each other one. `bold`: indices of rows in bold type.
    """
    divided = [_divided(_columns(heads, rows, level), keys, width) for level in range(_LEVELS)]
    best = min(filter(None, divided), key=len, default=None)
    if best is None or len(best) > _MOST_PARTS:
        return list(_records(heads, rows, width, bold))
    lines = []
    for number, part in enumerate(best):
        lines += ([""] if number else []) + list(_part(part, bold))
    return lines


@dataclass(frozen=True)
class _Column:
    """The lines of the head, and of each cell."""

    head: list[str]
    cells: list[list[str]]

    @property
    def width(self) -> int:
        return max(len(line) for lines in (self.head, *self.cells) for line in lines)


def _columns(heads: Sequence[str], rows: Sequence[Sequence[str]], level: int) -> list[_Column]:
    """Return columns of full width (0), with heads of several lines (1), with cells of several lines as well (2)."""
    columns = []
    for head, texts in zip(heads, zip(*rows, strict=True), strict=True):
        cells = [re.split(r"(?<=,) | (?=\()", text) if level > 1 else [text] for text in texts]
        least = max(len(line) for lines in cells for line in lines)
        narrow = max([least, *map(len, head.split())])
        shown = textwrap.wrap(head, narrow, break_on_hyphens=False) if level else [head]
        columns.append(_Column(shown or [""], cells))
    return columns


def _divided(columns: Sequence[_Column], keys: int, width: int) -> list[list[_Column]] | None:
    """Return the columns of each part, which begins with the `keys`; None if a part is too wide."""
    shared: list[_Column] = list(columns[:keys])
    parts: list[list[_Column]] = []
    for column in columns[keys:]:
        if not parts or _total([*parts[-1], column]) > width:
            parts.append(shared.copy())
        parts[-1].append(column)
    return None if any(_total(part) > width for part in parts) else parts


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _part(columns: Sequence[_Column], bold: Container[int]) -> Iterator[str]:
    height = max(len(column.head) for column in columns)
    yield from _aligned(columns, [[""] * (height - len(column.head)) + column.head for column in columns])
    yield "─" * _total(columns)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        for line in _aligned(columns, cells):
            yield typer.style(line, bold=True) if number in bold else line


def _aligned(columns: Sequence[_Column], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of one row; the first column is aligned to the left, the others to the right."""
    for texts in zip_longest(*cells, fillvalue=""):
        first, *others = (
            f"{text:{'>' if place else '<'}{column.width}}"
            for place, (text, column) in enumerate(zip(texts, columns, strict=True))
        )
        yield _GAP.join([first, *others]).rstrip()


def _records(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, bold: Container[int]) -> Iterator[str]:
    for number, (name, *cells) in enumerate(rows):
        if number:
            yield ""
        yield typer.style(name, bold=True) if number in bold else name
        for head, cell in zip(heads[1:], cells, strict=True):
            yield from wrapped(f"{head}: {cell}", width, _GAP, _GAP * 2)
