"""The table of all arms: each figure beside the baseline's. Below it, folded, further figures and what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale
from quorate.report.parts import (
    HALF,
    NOT_MEASURED,
    QUALITY_DIGITS,
    Alike,
    View,
    chip,
    figure,
    figure_in_words,
    folded,
    in_words,
    link,
    missing,
)
from quorate.report.schema import NOT_BEGUN, UNDER_WAY, ArmSummary, Estimate, Part, Summary
from quorate.report.topic import Arms, Topic
from quorate.report.wording import (
    Words,
    bytes_alike,
    counted,
    listed,
    numbers_alike,
    ratios_alike,
    seconds_alike,
    shares_alike,
)


@dataclass(frozen=True)
class Column:
    """One figure of every arm: its field, its head, its form, and its meaning."""

    field: str
    head: str
    alike: Alike
    meaning: str
    markdown: str
    """Its head in Markdown; empty if it is not there."""

    def of(self, arm: ArmSummary) -> Estimate | None:
        estimate: Estimate | None = getattr(arm, self.field)
        return estimate

    def means(self, arms: Iterable[ArmSummary]) -> list[float | None]:
        """Return the figures of all arms."""
        return [None if (estimate := self.of(arm)) is None else estimate.mean for arm in arms]


COLUMNS = (
    Column("target_speedup", "speed-up to the target", ratios_alike, "The baseline's time to the target, divided by "
           "this arm's, for pairs of runs of equal seed that both reached it: geometric mean.", ""),
    Column("speedup", "speed-up in examples/s", ratios_alike, "Examples per second divided by the baseline's, for "
           "pairs of runs of equal seed: geometric mean.", "speed-up"),
    Column("quality", "final quality", lambda values: numbers_alike(values, QUALITY_DIGITS),
           "At a run's last evaluation: mean over the seeds.", "final quality"),
    Column("time_to_target", "time to target", seconds_alike, "Training time until an evaluation first "
           "reached the target, over the runs that did; evaluations are not included.", "time to target"),
    Column("examples_per_second", "examples/s", numbers_alike, "Over all workers, without evaluations.", "examples/s"),
    Column("no_wait_share", "share of no-wait ideal", shares_alike, "Examples per second, as a share of the "
           "rate without any waiting and with free exchanges.", "of the no-wait ideal"),
    Column("bytes_per_step", "sent per step and rank", bytes_alike, "Bytes that one rank sends in one step.",
           "bytes per step and rank"),
    Column("peak_bytes", "peak memory", bytes_alike, "Resident memory of the rank that used most.",
           "peak memory"),
)  # fmt: skip
"""Speed-ups come first: on a phone one column is seen beside the names."""
_FIRST = ("target_speedup", "quality", "time_to_target")
_FIRST_WITHOUT_TARGET = ("speedup", "quality", "time_to_target", "examples_per_second")
"""The fields in the table above the fold; the others are in the table below it."""
_JUDGED_BY = {"target_speedup": "time_to_target", "speedup": "examples_per_second"}
"""The fields by whose differences ratios are judged."""
NEEDS_TARGET = {"time_to_target", "target_speedup"}
AGAINST_BASELINE = {"target_speedup", "speedup"}


def _body(view: View, arms: Arms[Part]) -> Iterator[Markup]:
    if not view.summary.arms:
        yield missing("This comparison has no arms: none of its runs has left records.")
        return
    columns = columns_of(view)
    has_target = any(column.field == "target_speedup" for column in columns)
    fields = _FIRST if has_target else _FIRST_WITHOUT_TARGET
    first = [column for column in columns if column.field in fields]
    further = [column for column in columns if column not in first]
    yield _table(view, first, is_first=True)
    yield _failures(view)
    below = _table(view, further, is_first=False) if further or view.summary.target is not None else Markup()
    yield folded("More figures, and what they mean", below, _meanings(view), _ratios(view))


def _failures(view: View) -> Markup:
    items = []
    for arm in view.summary.arms:
        for run in arm.runs:
            if run.status == 0 or run.why in (NOT_BEGUN, UNDER_WAY):
                continue
            end = "did not end" if run.status is None else f"ended with status {run.status}"
            why = f": {run.why}" if run.why else ""
            details = f", seed {run.seed}, {end}{why} ("
            items.append(element("li", element("strong", arm.name), details, link(run.folder, run.folder), ")"))
    if not items:
        return Markup()
    return element("div", element("h3", "Runs that failed or did not end"), element("ul", *items), class_="failures")


def _meanings(view: View) -> Markup:
    shown, summary = columns_of(view), view.summary
    terms = [joined((element("dt", head(view, column)), element("dd", column.meaning))) for column in shown]
    rule = (
        "Ranges are 95% intervals of the mean over three seeds or more; an interval narrower than the digits "
        "shown is left out. Bold: significantly better than the baseline, by "
        f"{summary.relevant * 100:g}% or more; worse in the same way."
    )
    unmeasured = [
        column.head for column in COLUMNS if column not in shown and column.field not in NEEDS_TARGET | AGAINST_BASELINE
    ]
    notes = [] if view.is_single else [element("p", rule, class_="note")]
    if unmeasured:
        notes.append(element("p", f"Not measured: {', '.join(unmeasured)}.", class_="note"))
    if summary.target is None:
        notes.append(element("p", "No target was set, so there is no time to target.", class_="note"))
    return joined([*notes, element("dl", *terms)])


def _ratios(view: View) -> Markup:
    charts = []
    captions = {"target_speedup": "Speed-up to the target", "speedup": "Speed-up in examples per second"}
    for field, caption in captions.items():
        estimates: list[tuple[ArmSummary, Estimate | None]] = [(arm, getattr(arm, field)) for arm in view.summary.arms]
        pairs = [
            (arm, estimate) for arm, estimate in estimates if estimate is not None and 0.0 < estimate.mean < math.inf
        ]
        words = ratios_alike(estimate.mean for _, estimate in pairs)
        rows = [
            Ratio(name=arm.name, look=view.looks[arm.name], estimate=estimate,
                  words=f"{words(estimate.mean)} ({_interval(estimate)})")
            for arm, estimate in pairs
        ]  # fmt: skip
        if rows:
            charts.append(_ratio_figure(view, rows, caption))
    return element("div", *charts, class_="figures") if charts else Markup()


def _ratio_figure(view: View, rows: list[Ratio], caption: str) -> Markup:
    label = f"{caption} over {view.summary.baseline}. " + " ".join(f"{row.name}: {row.words}." for row in rows)
    title = "over the baseline; thick line: 95% interval, strokes: seeds"
    return figure(view, caption, lambda width: ratio_chart(rows, title=title, width=width, label=label), wide=HALF)


def _interval(estimate: Estimate) -> str:
    if estimate.low is not None and estimate.high is not None:
        return f"{estimate.low:.2f} – {estimate.high:.2f}"
    return "one seed" if len(estimate.values) == 1 else ", ".join(f"{value:.2f}" for value in estimate.values)


def columns_of(view: View) -> list[Column]:
    """Return the columns for which at least one arm has a figure, and those about the target if there is one."""
    has_target = view.summary.target is not None
    return [
        column
        for column in COLUMNS
        if any(column.of(arm) is not None for arm in view.summary.arms)
        or (has_target and column.field == "time_to_target")
    ]


def _table(view: View, columns: Sequence[Column], *, is_first: bool) -> Markup:
    """Return a row for each arm. Every figure's cell has the value itself in `data-value`, and its arm."""
    summary = view.summary
    heads = [element("th", head(view, column), scope="col", title=column.meaning) for column in columns]
    has_reached = not is_first and summary.target is not None
    if has_reached:
        heads.append(element("th", "target reached", scope="col", title="Runs that reached it, of all runs."))
    words = {column.field: column.alike(column.means(summary.arms)) for column in columns}
    rows = []
    for arm in summary.arms:
        name = _name(view, arm) if is_first else element("th", _sign(view.looks[arm.name]), arm.name, scope="row")
        cells = [_cell(arm, column, words[column.field], columns) for column in columns]
        reached = [_reached_cell(arm)] if has_reached else []
        rows.append(element("tr", name, *cells, *reached, class_="baseline" if arm.is_baseline else None))
    top = element("tr", element("th", "strategy", scope="col"), *heads)
    inside = element(
        "table", element("thead", top), element("tbody", *rows), class_="arms first" if is_first else "arms"
    )
    label = "Results of all arms" if is_first else "More figures of all arms"
    return element("div", inside, class_="scroll table-box", tabindex=0, role="region", aria_label=label)


def head(view: View, column: Column) -> str:
    """Return the head of a column."""
    metric = view.summary.metric
    if column.field == "quality" and metric is not None:
        return f"final {metric.name} {'↑' if metric.higher_is_better else '↓'}"
    if column.field == "time_to_target" and view.summary.target is not None:
        return view.time(f"time to {figure_in_words(view.summary.target).rstrip('0').rstrip('.')}")
    return view.time(column.head) if column.field == "examples_per_second" else column.head


def _name(view: View, arm: ArmSummary) -> Markup:
    """Return the arm's name with the sign of its lines, its settings, and the number of runs that ended well."""
    small = [f"{key}={in_words(value)}" for key, value in arm.settings.items()]
    if arm.strategy is not None and arm.strategy != arm.name:
        small.insert(0, Path(arm.strategy).name if arm.strategy.endswith(".py") else arm.strategy)
    if arm.learning_rate_factor not in (None, 1.0):
        small.append(f"learning rate ×{arm.learning_rate_factor:g}")
    well = sum(run.status == 0 for run in arm.runs)
    awaited = [run for run in arm.runs if run.status is None]
    never = sum(run.why == NOT_BEGUN for run in awaited)
    failed = len(arm.runs) - well - len(awaited)
    chips = [chip("baseline")] if arm.is_baseline else []
    if failed:
        chips.append(chip(f"{failed} of {counted(len(arm.runs), 'run')} failed", "bad"))
    going_on = any(run.why == UNDER_WAY for run in awaited)
    for count, state in ((len(awaited) - never, "under way" if going_on else "stopped"), (never, "not run")):
        if count:
            chips.append(chip(f"{count} of {counted(len(arm.runs), 'run')} {state}", "warn"))
    disturbed = sum(run.load is not None and run.load.is_busy for run in arm.runs)
    if 0 < disturbed < len(arm.runs):
        chips.append(chip(f"{counted(disturbed, 'run')} disturbed", "warn"))
    if len(arm.runs) == 1 and not failed and not awaited:
        chips.append(chip("one seed", "warn"))
    head = [_sign(view.looks[arm.name]), element("span", arm.name, class_="arm-name"), *chips]
    lines = [element("div", *head)]
    if small:
        lines.append(element("div", " · ".join(small), class_="small"))
    if len(arm.seeds) < len(arm.runs) and len(arm.runs) > 1:
        lines.append(element("div", _seeds_in_words(arm), class_="small"))
    return element("th", *lines, scope="row", data_arm=arm.name, data_runs=str(len(arm.runs)), data_well=str(well))


def _seeds_in_words(arm: ArmSummary) -> str:
    which = f" ({listed([str(seed) for seed in arm.seeds])})" if arm.seeds else ""
    return f"{len(arm.seeds)} of {len(arm.runs)} seeds{which}"


def _sign(look: int) -> Markup:
    piece = element("path", d="M1 8L31 8", class_="line", stroke_dasharray=drawing.dashes_of(look) or None)
    parts = drawing.group(piece, drawing.marker(16, 8, look), class_=drawing.colour_of(look))
    return element("svg", parts, class_="sign", viewBox="0 0 32 16", width=32, height=16, aria_hidden="true")


def _cell(arm: ArmSummary, column: Column, write: Words, columns: Sequence[Column]) -> Markup:
    """Return the mean (bold if the arm is significantly better), its interval, and the comparison with the baseline.

    Of a ratio and what it is judged by, only the ratio says the comparison where both are among the `columns`.
    """
    marks = {"data_arm": arm.name, "data_field": column.field}
    estimate = column.of(arm)
    if estimate is None:
        words, why = _nothing(arm, column)
        return element("td", element("span", words, class_="none"), **marks, title=why)
    values = {"data_value": repr(estimate.mean)}
    written = write(estimate.mean)
    difference = arm.differences.get(_JUDGED_BY.get(column.field, column.field))
    lines = [element("strong" if difference == "better" else "span", written, class_="mean")]
    if estimate.low is not None and estimate.high is not None:
        values |= {"data_low": repr(estimate.low), "data_high": repr(estimate.high)}
        low, high = write(estimate.low), write(estimate.high)
        if {low, high} != {written}:
            lines.append(element("span", f"{low} – {high}", class_="interval"))
    elif len(estimate.values) == 1:
        lines.append(element("span", "one seed", class_="interval"))
    elif len(estimate.values) == 2:
        lines.append(element("span", ", ".join(map(write, estimate.values)), class_="interval"))
    baseline = arm.alongside.get(column.field)
    if baseline is not None:
        lines.append(element("span", f"baseline there: {write(baseline)}", class_="there"))
    if column.field == "time_to_target" and arm.target_reached is not None and len(set(arm.target_reached)) > 1:
        lines.append(element("span", "in {} of {} runs".format(*arm.target_reached), class_="there"))
    is_said = any(_JUDGED_BY.get(other.field) == column.field for other in columns)
    if difference is not None and len(estimate.values) > 1 and not is_said:  # of one seed none can be shown
        kind = {"better": "better", "worse": "worse"}.get(difference, "same")
        lines.append(element("span", difference, class_=f"difference {kind}"))
    return element("td", *lines, **marks, **values)


def _nothing(arm: ArmSummary, column: Column) -> tuple[str, str]:
    if all(run.status is None for run in arm.runs):
        is_never = all(run.why == NOT_BEGUN for run in arm.runs)
        return "not run" if is_never else "not ended", "No run of this arm has ended."
    if not any(run.status == 0 for run in arm.runs):
        return "failed", "No run of this arm ended well."
    if column.field == "time_to_target" and arm.target_reached is not None and arm.target_reached[0] == 0:
        return "missed", "No run reached the target."
    if column.field in AGAINST_BASELINE and arm.is_baseline:
        return "baseline", "The baseline of the comparison."
    return NOT_MEASURED, "Not measured."


def _reached_cell(arm: ArmSummary) -> Markup:
    if arm.target_reached is None:
        return element(
            "td", element("span", NOT_MEASURED, class_="none"), data_arm=arm.name, data_field="target_reached"
        )
    reached, runs = arm.target_reached
    words = element("span", f"{reached} of {runs}", class_="mean" if reached == runs else "mean part")
    return element(
        "td", words, data_arm=arm.name, data_field="target_reached", data_value=str(reached), data_of=str(runs)
    )


_ROW = 34.0
_STEPS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1000.0)
"""Ratios to which an axis reaches, up and down."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A mean above 0, its interval if there is one, and the value of each seed."""

    name: str
    look: int
    estimate: Estimate
    words: str


def ratio_chart(rows: Sequence[Ratio], *, title: str, width: float, label: str) -> Markup:
    """Draw a line for each interval, a mark for the mean, a stroke for each seed; the line at 1× is the baseline."""
    narrow = width < drawing.NARROW
    tall = _ROW + (18.0 if narrow else 0.0)
    longest = max(drawing.text_width(row.name, 13.0) for row in rows)
    named = 0.0 if narrow else min(width * 0.36, longest + 12.0)
    right = width - (10.0 if narrow else 150.0)
    top = 24.0
    foot = top + tall * len(rows)
    x = _scale(rows, named + 10.0, right)
    parts = [drawing.text(0, 12, title, class_="axis-title"), _axis(x, top, foot)]
    for place, row in enumerate(rows):
        y = top + tall * place + (tall - 12.0 if narrow else tall / 2.0)
        parts.append(_ratio_row(row, x, y))
        if narrow:
            parts.append(drawing.text(0, y - 15, drawing.shortened(row.name, width * 0.5), class_="name halo"))
            parts.append(drawing.text(width, y - 15, row.words, class_="small halo", anchor="end"))
        else:
            parts.append(drawing.text(0, y + 4, drawing.shortened(row.name, named, 13), class_="name"))
            parts.append(drawing.text(width, y + 4, row.words, class_="small", anchor="end"))
    return drawing.svg(width, foot + 40.0, *parts, label=label)


def _scale(rows: Sequence[Ratio], begin: float, end: float) -> Scale:
    """Return a scale from 1 as far up and down as the rows need, and a little to the other side."""
    values = [
        value
        for row in rows
        for value in (row.estimate.mean, row.estimate.low, row.estimate.high, *row.estimate.values)
        if value is not None and value > 0
    ]
    up = next((step for step in _STEPS if step >= max(values)), max(values))
    down = next((step for step in _STEPS if step >= 1.0 / min(values)), 1.0 / min(values))
    return Scale(1.0 / max(down, up**0.2), max(up, down**0.2), begin, end, is_log=True)


def _axis(x: Scale, top: float, foot: float) -> Markup:
    parts = []
    for value in _ticks(x.low, x.high):
        kind = "same" if value == 1.0 else "grid"
        parts.append(drawing.line(x(value), top, x(value), foot, class_=kind))
        parts.append(drawing.text(x(value), foot + 16, f"{value:g}×", class_="tick", anchor="middle"))
    parts.append(drawing.line(x.begin, foot, x.end, foot, class_="axis"))
    parts.append(drawing.text(x(1.0), foot + 32, "as the baseline", class_="axis-title", anchor="middle"))
    return joined(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, and at most three round ratios on either side, far enough apart."""
    wide = math.log(high / low)
    ticks = [1.0]
    for direction in (1, -1):
        last = 0.0
        for step in _STEPS:
            value = round(step**direction, 3)
            if low * 0.999 <= value <= high * 1.001 and abs(math.log(step)) - last >= wide * 0.13:
                ticks.append(value)
                last = abs(math.log(step))
    return sorted(ticks)


def _ratio_row(row: Ratio, x: Scale, y: float) -> Markup:
    seeds = [
        drawing.line(x(value), y - 8, x(value), y + 8, class_="stroke") for value in row.estimate.values if value > 0.0
    ]
    interval: list[str] = []
    if row.estimate.low is not None and row.estimate.high is not None:
        interval = [drawing.line(x(row.estimate.low), y, x(row.estimate.high), y, class_="range")]
    mean = drawing.marker(x(row.estimate.mean), y, row.look, 5.0)
    return drawing.group(
        element("title", f"{row.name}: {row.words}"), *seeds, *interval, mean, class_=drawing.colour_of(row.look)
    )


def table_in_markdown(summary: Summary) -> str:
    """Return the table of all arms in Markdown."""
    columns = [column for column in COLUMNS if column.markdown]
    ways = [numbers_alike if column.field == "quality" else column.alike for column in columns]
    words = [form(column.means(summary.arms)) for column, form in zip(columns, ways, strict=True)]
    heads = ("strategy", *(column.markdown for column in columns), "target reached")
    rows = [heads, ["---"] * len(heads), *(_markdown_row(arm, columns, words) for arm in summary.arms)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _markdown_row(arm: ArmSummary, columns: Sequence[Column], words: Sequence[Words]) -> list[str]:
    name = f"{arm.name} (baseline)" if arm.is_baseline else arm.name
    reached = arm.target_reached
    cells = []
    for column, write in zip(columns, words, strict=True):
        is_missed = column.field == "time_to_target" and reached is not None and reached[0] == 0
        cell = "missed" if is_missed else _markdown_cell(column.of(arm), write)
        cells.append(_judged(cell, arm.differences.get(_JUDGED_BY.get(column.field, column.field))))
    return [name.replace("|", "\\|"), *cells, NOT_MEASURED if reached is None else f"{reached[0]} of {reached[1]}"]


def _markdown_cell(estimate: Estimate | None, words: Words) -> str:
    """Write `0.62 (0.60 to 0.64, 5 seeds)`; the values of two seeds, and the only one of one."""
    if estimate is None:
        return NOT_MEASURED
    if estimate.low is None or estimate.high is None:
        count = len(estimate.values)
        each = f"{', '.join(map(words, estimate.values))}; {count} seeds" if count > 1 else "one seed"
        return f"{words(estimate.mean)} ({each})"
    mean, low, high = words(estimate.mean), words(estimate.low), words(estimate.high)
    spread = "" if low == mean == high else f"{low} to {high}, "
    return f"{mean} ({spread}{len(estimate.values)} seeds)"


def _judged(cell: str, difference: str | None) -> str:
    """Set a cell in bold if it is shown to be better, else add what is shown."""
    if difference is None or cell == NOT_MEASURED:
        return cell
    return f"**{cell}**" if difference == "better" else f"{cell}: {difference}"


def legend_in_markdown(summary: Summary) -> str:
    """Return the sentences that explain the table."""
    metric = ""
    if summary.metric is not None:
        better = "higher" if summary.metric.higher_is_better else "lower"
        metric = f"Quality is {summary.metric.name}, {better} is better. "
    if summary.target is not None:
        metric += f"The target is {summary.target:g}. "
    if summary.baseline is None:
        return f"{metric}In brackets: the 95% interval of the mean, where there are three seeds or more."
    return (
        f"{metric}In brackets: the 95% interval of the mean. **Bold**: better than {summary.baseline}, pair by pair of "
        "equal seeds, beyond the 95% interval. Speed-up is in examples per second, as a geometric mean."
    )


def _markdown(view: View, arms: Arms[Part]) -> list[str]:
    return [table_in_markdown(view.summary), legend_in_markdown(view.summary)]


TOPIC = Topic[None, Part](name="table", title="Table", body=_body, markdown=_markdown, is_open=True)
