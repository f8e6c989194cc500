"""The verdict: a sentence, cautions, the table of all arms, and a chart of the speed-ups."""

from __future__ import annotations

import math

from quorate.report.charts.intervals import Ratio, ratio_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page.parts import HALF, View, figure, link, missing
from quorate.report.page.table import (
    AGAINST_BASELINE,
    COLUMNS,
    NEEDS_TARGET,
    arms_table,
    columns_of,
    head_in_full,
)
from quorate.report.schema import NOT_BEGUN, ArmSummary, Estimate
from quorate.report.wording import Words, ratios_alike

_LONG = 150
"""Letters in a verdict, from which on it is set smaller."""


def verdict(view: View) -> Markup:
    """Return section 1 of the page."""
    summary = view.summary
    return element(
        "section",
        _sentence(summary.verdict),
        _warnings(view),
        arms_table(view) if summary.arms else missing("There are no arms in this comparison."),
        _failures(view),
        _meanings(view),
        _ratios(view),
        id="verdict",
        class_="full",
        aria_label="Verdict",
    )


def _sentence(verdict: str) -> Markup:
    headline, *others = verdict.splitlines()
    kind = "verdict" if len(headline) <= _LONG else "verdict long"
    below = (element("p", line, class_="verdict-line") for line in others)
    return joined([element("p", headline, class_=kind), *below])


def _warnings(view: View) -> Markup:
    if not view.summary.warnings:
        return Markup()
    items = (element("li", warning) for warning in view.summary.warnings)
    return element("div", element("strong", "Caution"), element("ul", *items), class_="warnings", role="note")


def _failures(view: View) -> Markup:
    items = []
    for arm in view.summary.arms:
        for run in arm.runs:
            if run.status == 0 or run.why == NOT_BEGUN:
                continue
            end = "did not end" if run.status is None else f"ended with status {run.status}"
            why = f": {run.why}" if run.why else ""
            details = f", seed {run.seed}, {end}{why} ("
            items.append(element("li", element("strong", arm.name), details, link(run.folder, run.folder), ")"))
    if not items:
        return Markup()
    return element("div", element("h3", "Runs that did not end well"), element("ul", *items), class_="failures")


def _meanings(view: View) -> Markup:
    shown = columns_of(view)
    terms = [joined((element("dt", head_in_full(view, column)), element("dd", column.meaning))) for column in shown]
    rule = (
        "Ranges are 95% intervals of the mean over three seeds or more; where there is none beside such a mean, it is "
        "narrower than the digits shown. Bold: significantly better than the baseline."
    )
    unmeasured = [
        column.head for column in COLUMNS if column not in shown and column.field not in NEEDS_TARGET | AGAINST_BASELINE
    ]
    notes = [] if view.is_single else [element("p", rule, class_="note")]
    if unmeasured:
        notes.append(element("p", f"Not measured: {', '.join(unmeasured)}.", class_="note"))
    if view.summary.target is None:
        notes.append(element("p", "No target was set, so there is no time to one.", class_="note"))
    return joined([*notes, element("details", element("summary", "What the columns mean"), element("dl", *terms))])


def _ratios(view: View) -> Markup:
    charts = []
    captions = {"target_speedup": "Speed-up to the target", "speedup": "Speed-up in examples per second"}
    for field, caption in captions.items():
        estimates: list[tuple[ArmSummary, Estimate | None]] = [(arm, getattr(arm, field)) for arm in view.summary.arms]
        pairs = [
            (arm, estimate) for arm, estimate in estimates if estimate is not None and 0.0 < estimate.mean < math.inf
        ]
        words = ratios_alike(estimate.mean for _, estimate in pairs)
        rows = [_ratio(arm, view.looks[arm.name], estimate, words) for arm, estimate in pairs]
        if rows:
            charts.append(_ratio_figure(view, rows, caption))
    return element("div", *charts, class_="figures") if charts else Markup()


def _ratio_figure(view: View, rows: list[Ratio], caption: str) -> Markup:
    label = f"{caption} over {view.summary.baseline}. " + " ".join(f"{row.name}: {row.words}." for row in rows)
    title = "over the baseline; thick line: 95% interval, strokes: seeds"
    return figure(view, caption, lambda width: ratio_chart(rows, title=title, width=width, label=label), wide=HALF)


def _ratio(arm: ArmSummary, look: int, estimate: Estimate, words: Words) -> Ratio:
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f" ({estimate.low:.2f} – {estimate.high:.2f})"
    elif len(estimate.values) == 1:
        interval = " (one seed)"
    else:
        interval = f" ({', '.join(f'{value:.2f}' for value in estimate.values)})"
    return Ratio(
        name=arm.name, look=look, mean=estimate.mean, low=estimate.low, high=estimate.high, values=estimate.values,
        words=words(estimate.mean) + interval,
    )  # fmt: skip
