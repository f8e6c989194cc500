"""The elements of sections of the page: figures, tables, and words for values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVarTuple, Unpack
from urllib.parse import quote

from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.schema import ArmSummary, Summary
from quorate.report.wording import Words, listed

WIDE, HALF, SLIM = 940.0, 590.0, 340.0
"""Widths that charts are drawn for: a desk, half of one, and a phone. The style sheet shows the one that fits."""
NOT_MEASURED = "–"
Alike = Callable[[Iterable[float | None]], Words]
"""The form of the figures in one column."""
Ts = TypeVarTuple("Ts")
TableColumns = Sequence[tuple[str, Callable[[Unpack[Ts]], Any], Alike | None]]
"""Columns of a table: the head, the value in a row, and the form of its figures; None for words."""
LISTED = 200
"""The most rows of the numbers below a chart."""
QUALITY_DIGITS = 4
"""Digits of qualities, of which the third still counts."""


@dataclass(frozen=True)
class View:
    """The summary, with the properties that several sections need."""

    summary: Summary
    files: Sequence[str] = ()
    """The paths of the files with its data, beside the page."""

    @property
    def is_virtual(self) -> bool:
        """Whether the runs were made in a virtual world."""
        return self.summary.world == "virtual"

    @property
    def is_single(self) -> bool:
        """Whether it is of one run, compared with nothing."""
        return len(self.summary.arms) == 1 and self.summary.baseline is None

    def workers(self, arm: ArmSummary) -> int:
        """Return the number of workers of an arm."""
        workers = self.summary.fairness.differed.get("workers", {}).get(arm.name)
        return workers if isinstance(workers, int) else self.summary.workers

    def time(self, words: str) -> str:
        """Return words for a time, with a mark if it is virtual."""
        return f"virtual {words}" if self.is_virtual else words

    @cached_property
    def looks(self) -> Mapping[str, int]:
        """The look of each arm's lines: the baseline has the first, the others follow in order."""
        ordered = sorted(self.summary.arms, key=lambda arm: not arm.is_baseline)
        return {arm.name: place for place, arm in enumerate(ordered)}

    def left_out(self, shown: Collection[str], reason: str) -> str:
        """Return a sentence about arms that are not `shown` in a chart; empty if there are none."""
        names = [arm.name for arm in self.summary.arms if arm.name not in shown]
        return f"Not shown: {listed(names)} ({reason})." if names else ""


def section(name: str, title: str, lead: str, *body: str, is_open: bool = True) -> Markup:
    """Return one section of the page: a few words on how to read it, and the body beside them, or folded below."""
    words, content = element("p", lead, class_="lead"), element("div", *body, class_="body")
    if is_open:
        return element("section", element("div", element("h2", title), words, class_="side"), content, id=name)
    inside = element("details", element("summary", element("h2", title)), words, content)
    return element("section", inside, id=name, class_="folded")


def figure(
    view: View,
    caption: str,
    draw: Callable[[float], Markup],
    *,
    finding: str = "",
    note: str = "",
    numbers: str = "",
    slim: bool = True,
    wide: float = WIDE,
) -> Markup:
    """Return a chart at both widths, with a badge on virtual time, its finding, notes, and its numbers.

    Without `slim` there is only the wide one, which narrow windows scroll.
    """
    parts: list[str] = []
    if finding:
        parts.append(element("p", sentence(finding), class_="finding"))
    if slim:
        parts += [element("div", draw(wide), class_="wide"), element("div", draw(SLIM), class_="slim")]
    else:
        parts.append(element("div", draw(wide), class_="scroll", tabindex=0))
    if note:
        parts.append(element("p", note, class_="note"))
    if numbers:
        parts.append(folded("The numbers", numbers))
    return framed(view, caption, *parts)


def line_figure(
    view: View,
    caption: str,
    lines: Sequence[Line],
    axes: Axes,
    label: str,
    *,
    height: float = 300.0,
    note: str = "",
    wide: float = WIDE,
) -> Markup:
    """Return a chart of `lines`, of which `label` is the description; as `figure`."""

    def draw(width: float) -> Markup:
        return line_chart(lines, axes, width=width, height=height, label=label)

    return figure(view, caption, draw, note=note, wide=wide)


def folded(summary: str, *body: str) -> Markup:
    """Return content that readers unfold."""
    return element("details", element("summary", summary), *body)


def framed(view: View, caption: str, *parts: str) -> Markup:
    """Return anything under a caption, with a badge on virtual time."""
    badge = [element("span", "virtual time", class_="badge")] if view.is_virtual else []
    return element("figure", element("figcaption", element("span", caption), *badge), *parts)


def sentence(words: str) -> str:
    """Return words with a capital letter and a full stop."""
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def missing(sentence: str) -> Markup:
    """Return the sentence in the place of a chart without data; nothing for an empty one."""
    return element("p", sentence, class_="missing") if sentence else Markup()


def nothing(words: str = NOT_MEASURED) -> Markup:
    """Return the words in the place of a figure that was not measured."""
    return element("span", words, class_="none")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table in a box that scrolls when it is too wide; the first cell of a row is its name."""
    top = element("tr", *(element("th", head, scope="col") for head in heads))
    body = (
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    )
    inside = element("table", element("thead", top), element("tbody", *body))
    return element("div", inside, class_="scroll", tabindex=0)


def long_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table of the first `LISTED` rows; all are in the data."""
    more = f"The first {LISTED} of {len(rows):,} rows; the data have all of them." if len(rows) > LISTED else ""
    return joined([table(heads, rows[:LISTED]), paragraphs(more)])


def further(noun: str, beyond: Iterable[int]) -> str:
    """Return a sentence about the rows of all arms that are not listed, by how many each has `beyond` the listed."""
    hidden = sum(max(0, count) for count in beyond)
    return f"Further {noun}: {hidden:,}; the data have all of them." if hidden else ""


def alike(values: Sequence[float | None], form: Alike, missing: str | None = None) -> list[str]:
    """Return figures in words, in one unit, with one number of digits; a dash for missing ones."""
    write = form(values)
    return [(missing or nothing()) if value is None else write(value) for value in values]


def cells_of(rows: Sequence[tuple[*Ts]], columns: TableColumns[*Ts], missing: str | None = None) -> list[list[str]]:
    """Return the cells of each column."""
    cells: list[list[str]] = []
    for _, value_of, form in columns:
        values: list[Any] = [value_of(*row) for row in rows]
        cells.append(values if form is None else alike(values, form, missing))
    return cells


def arms_table(rows: Sequence[tuple[ArmSummary, *Ts]], columns: TableColumns[*Ts]) -> Markup:
    """Return a table with a row for each of `rows`: the name of the arm, and the columns."""
    cells = [[row[0].name for row in rows], *cells_of([row[1:] for row in rows], columns)]
    return table(["strategy", *(head for head, _, _ in columns)], list(zip(*cells, strict=True)))


def pairs(values: Mapping[str, object]) -> Markup:
    """Return a table of keys and values, nested ones with dots between their keys."""
    rows = [(element("code", key), element("code", in_words(value))) for key, value in flat(values)]
    body = (element("tr", element("th", key, scope="row"), element("td", value)) for key, value in rows)
    return element("div", element("table", element("tbody", *body), class_="pairs"), class_="scroll", tabindex=0)


def flat(values: Mapping[str, object], before: str = "") -> list[tuple[str, object]]:
    """Return nested mappings as one, with dots between keys."""
    items: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            items += flat(value, f"{before}{key}.")
        else:
            items.append((f"{before}{key}", value))
    return items


def in_words(value: object) -> str:
    """Return a setting as it is written in JSON, words without their quotes; a dash for None."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def figure_in_words(value: float) -> str:
    """Return a single quality with `QUALITY_DIGITS`: `0.6953`, `12.30`, `1,234`."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    if value != 0.0 and abs(value) < 1e-4:
        return f"{value:.3e}"
    return f"{value:#.{QUALITY_DIGITS}g}"


def chip(words: str, kind: str = "") -> Markup:
    """Return a short fact in a frame."""
    return element("span", words, class_=f"chip {kind}".strip())


def link(path: str, words: str) -> Markup:
    """Return a link to a file beside the page, with any characters in its name."""
    return element("a", words, href=f"./{quote(path, errors='replace')}")


def paragraphs(*sentences: str) -> Markup:
    """Return each sentence that is not empty in its own paragraph."""
    return joined(element("p", sentence, class_="note") for sentence in sentences if sentence)
