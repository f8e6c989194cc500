"""A topic of the report: its figures, and its part of the summary, the page, the Markdown and the data."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from quorate.report.charts.markup import Markup, element
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import View, missing, section
from quorate.report.runs import RunFigures
from quorate.report.schema import ArmSummary, Part, Summary

F = TypeVar("F")
S = TypeVar("S", bound=Part)
Arms = Sequence[tuple[ArmSummary, S]]
"""The arms that have a part, each with it."""
Row = tuple[object, ...]
Data = tuple[str, Callable[[S], Iterable[Row]]]
"""The data of a plot: the names of its columns, and the function that returns its rows from the part of an arm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Topic(Generic[F, S]):
    """All that the report says of one topic. Every function but `body` may be left out.

    A topic with a `part` adds to every arm in `summary.json` a field of its name, which is null if no run has figures.
    """

    name: str
    """The anchor of its section, and the name of its field."""
    title: str
    """The heading of its section."""
    lead: str = ""
    """A few words on how to read the section; without them it has the full width, and no heading."""
    is_open: bool = False
    """Whether its section is unfolded from the beginning."""
    part: type[S] | None = None
    """Its part of an arm in `summary.json`; None for topics of the whole comparison."""
    is_flat: bool = False
    """Whether the fields of `part`, which have defaults, are fields of the arm themselves."""
    measure: Callable[[MeasuredRun], F | None] = field(default=lambda run: None)
    """Returns the figures of one run; None if it has recorded nothing of the topic."""
    align: Callable[[Sequence[F]], None] = field(default=lambda runs: None)
    """Sets in the figures of all runs of all arms what they have in common."""
    summarize: Callable[[Sequence[F]], S | None] = field(default=itemgetter(0))
    """Returns the part of an arm from the figures of its runs, one or more; by default, of the first one."""
    body: Callable[[View, Arms[S]], Iterable[str]]
    """Returns the content of the section; without content it is left out."""
    missing: str = ""
    """The sentence in place of the content, if no arm has a part; without it the section is left out."""
    markdown: Callable[[View, Arms[S]], Sequence[str]] = field(default=lambda view, arms: ())
    """Returns the paragraphs of its Markdown."""
    data: Mapping[str, Data[S]] = field(default_factory=dict)
    """The data of its plots, by the name of the CSV file."""

    def figures(self, run: RunFigures) -> F | None:
        """Return what `measure` has returned of a run."""
        figures: F | None = run.topics.get(self.name)
        return figures

    def field_types(self) -> dict[str, Any]:
        """Return the types and defaults of the fields that it adds to an arm, by name."""
        if self.part is None:
            return {}
        if self.is_flat:
            return {name: (entry.annotation, entry) for name, entry in self.part.model_fields.items()}
        return {self.name: (self.part | None, None)}

    def fields(self, runs: Iterable[RunFigures]) -> dict[str, Any]:
        """Return these fields of an arm whose `runs` count together."""
        if self.part is None:
            return {}
        figures = [run_figures for run in runs if (run_figures := self.figures(run)) is not None]
        part = self.summarize(figures) if figures else None
        if self.is_flat:
            return {} if part is None else dict(part)
        return {self.name: part}

    def of(self, arm: ArmSummary) -> S | None:
        """Return the part of an arm."""
        if self.part is not None and self.is_flat:
            return self.part.model_construct(**{name: getattr(arm, name) for name in self.part.model_fields})
        part: S | None = getattr(arm, self.name, None)
        return part

    def arms(self, view: View) -> Arms[S]:
        """Return the arms that have a part, each with it."""
        return [(arm, part) for arm in view.summary.arms if (part := self.of(arm)) is not None]

    def section(self, view: View) -> Markup:
        """Return its section of the page; empty if it is left out."""
        arms = self.arms(view)
        has_no_arms = self.part is not None and not self.is_flat and not arms
        content = [] if has_no_arms else [*self.body(view, arms)]
        if not content and not self.missing:
            return Markup()
        content = content or [missing(self.missing)]
        if not self.lead:
            return element("section", *content, id=self.name, class_="full", aria_label=self.title)
        return section(self.name, self.title, self.lead, *content, is_open=self.is_open)

    def tables(self, summary: Summary) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each CSV file, with the rows of all arms; unknown values are empty cells."""
        arms = self.arms(View(summary))
        for name, (columns, rows) in self.data.items():
            written = io.StringIO()
            writer = csv.writer(written, lineterminator="\n")
            writer.writerow(["arm", *columns.split()])
            writer.writerows((arm.name, *row) for arm, part in arms for row in rows(part))
            yield name, written.getvalue()


def by_arm(title: str, arms: Arms[S], words: Callable[[S], str], otherwise: str = "") -> Sequence[str]:
    """Return paragraphs of Markdown with a line for each arm; without arms a sentence, or nothing."""
    lines = "\n".join(f"- {arm.name}: {words(part)}." for arm, part in arms) or otherwise
    return [f"## {title}", lines] if lines else []


def data_of(columns: str, parts: Callable[[S], Iterable[Part]]) -> Data[S]:
    """Return the data with a row for each of these parts of an arm: the fields that are named as the columns."""
    return columns, lambda part: map(attrgetter(*columns.split()), parts(part))
