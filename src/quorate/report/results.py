"""The results of each arm: its quality, its speed and its costs beside the baseline's, and the table of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element
from quorate.report.parts import NOT_MEASURED, QUALITY_DIGITS, Alike, View, chip, figure_in_words, in_words
from quorate.report.reading.planned import Planned, PlannedArm
from quorate.report.runs import RunFigures
from quorate.report.schema import NOT_BEGUN, UNDER_WAY, ArmSummary, Estimate, Summary
from quorate.report.statistics import Difference, difference_verdict, ratio_interval, ratio_verdict
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

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """One figure of every arm: its field, its heads, its form, and its meaning."""

    field: str
    group: str
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
    Column("target_speedup", "Speed-up", "to the target", ratios_alike, "The baseline's time to target over this "
           "one's, by pairs of equal seed in which both reached it: geometric mean.", ""),
    Column("speedup", "Speed-up", "in examples/s", ratios_alike, "Examples per second over the baseline's, by pairs of "
           "equal seed: geometric mean.", "speed-up"),
    Column("quality", "Quality", "final quality", lambda values: numbers_alike(values, QUALITY_DIGITS),
           "At a run's last evaluation: mean over the seeds.", "final quality"),
    Column("time_to_target", "Target", "time to target", seconds_alike, "Training time until an evaluation first "
           "reached the target, over the runs that did; evaluations themselves do not count.", "time to target"),
    Column("examples_per_second", "Throughput", "examples/s", numbers_alike, "Of all workers together, without "
           "evaluations.", "examples/s"),
    Column("no_wait_share", "Throughput", "share of no-wait ideal", shares_alike, "Examples per second over what the "
           "workers would do if nobody ever waited and exchanges cost nothing.", "of the no-wait ideal"),
    Column("bytes_per_step", "Cost", "sent per step and rank", bytes_alike, "What one rank sends in one step.",
           "bytes per step and rank"),
    Column("peak_bytes", "Cost", "peak memory", bytes_alike, "Resident memory of the greatest rank at its peak.",
           "peak memory"),
)  # fmt: skip
"""Speed-ups come first: on a telephone one column is seen beside the names."""
_JUDGED_BY = {"target_speedup": "time_to_target", "speedup": "examples_per_second"}
"""The fields by whose differences ratios are judged."""
NEEDS_TARGET = {"time_to_target", "target_speedup"}
AGAINST_BASELINE = {"target_speedup", "speedup"}
_Figure = Callable[[RunFigures], float | None]
_Kind = Literal["ratio", "difference"]
_COMPARED: dict[str, tuple[_Kind, bool]] = {
    "time_to_target": ("ratio", False),
    "examples_per_second": ("ratio", True),
    "seconds": ("ratio", False),
    "no_wait_share": ("difference", True),
    "bytes_per_step": ("ratio", False),
    "peak_bytes": ("ratio", False),
}
"""By field of `ArmSummary` and of a run's figures: the kind of comparison, and whether more is better."""


def results_of(
    arm: PlannedArm, runs: Sequence[RunFigures], baseline: Sequence[RunFigures], plan: Planned
) -> dict[str, Any]:
    """Return the fields of an arm that all have; figures are of the runs that are used.

    `runs` and `baseline` are all runs of either, in the order of the plan.
    """
    used = [run for run in runs if run.is_used]
    others = [] if arm.is_baseline else [run for run in baseline if run.is_used]
    return {
        "name": arm.name,
        "strategy": arm.strategy,
        "settings": arm.settings,
        "is_baseline": arm.is_baseline,
        "learning_rate_factor": arm.learning_rate_factor,
        "runs": tuple(run.outcome for run in runs),
        "seeds": tuple(run.seed for run in used),
        "alongside": _alongside(used, others),
        "quality": Estimate.of_known((run.quality for run in used), least=-math.inf),
        "target_reached": _reached(runs, plan),
        "examples": Estimate.of_known(run.examples for run in used),
        "speedup": _ratio_estimate(_ratios(_pairs(used, others, lambda run: run.examples_per_second))),
        "target_speedup": _ratio_estimate(_ratios(_pairs(others, used, lambda run: run.time_to_target))),
        **{name: Estimate.of_known(map(attrgetter(name), used)) for name in _COMPARED},
        "differences": _differences(used, others, plan),
    }


def _reached(runs: Sequence[RunFigures], plan: Planned) -> tuple[int, int] | None:
    """Count runs that reached the target and runs that ended; failed runs have not, runs left out do not count."""
    ended = [run for run in runs if not run.is_apart and (run.outcome.status is not None or run.is_used)]
    if plan.target is None or not ended:
        return None
    return sum(run.is_used and run.time_to_target is not None for run in ended), len(ended)


def _alongside(runs: Sequence[RunFigures], others: Sequence[RunFigures]) -> dict[str, float]:
    """Return the baseline's means over the seeds of `runs`, if it has more; by field."""
    seeds = {run.seed for run in runs}
    common = [run for run in others if run.seed in seeds]
    if not common or len(common) == len(others):
        return {}
    means = {
        name: Estimate.of_known(map(attrgetter(name), common), least=-math.inf) for name in ("quality", *_COMPARED)
    }
    return {name: mean.mean for name, mean in means.items() if mean is not None}


def _ratio_estimate(ratios: Sequence[float]) -> Estimate | None:
    if not ratios:
        return None
    interval = ratio_interval(ratios)
    return Estimate(mean=interval.mean, low=interval.low, high=interval.high, values=tuple(ratios))


def _pairs(runs: Sequence[RunFigures], others: Sequence[RunFigures], figure: _Figure) -> list[tuple[float, float]]:
    theirs = {run.seed: figure(run) for run in others}
    pairs = [(figure(run), theirs.get(run.seed)) for run in runs]
    return [(own, other) for own, other in pairs if own is not None and other is not None]


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [own / other for own, other in pairs if own > 0.0 and other > 0.0]


def _differences(runs: Sequence[RunFigures], others: Sequence[RunFigures], plan: Planned) -> dict[str, Difference]:
    """Return the verdicts by field: those that both sides have, and that mean something."""
    verdicts: dict[str, Difference] = {}
    if plan.metric is not None:
        pairs = _pairs(runs, others, lambda run: run.quality)
        # A run without a number at its end diverged: to leave it out must not make the rest look good.
        is_whole = all(run.quality is not None for run in (*runs, *others))
        if pairs:
            more = plan.metric.higher_is_better
            verdicts["quality"] = (
                difference_verdict(pairs, higher_is_better=more) if is_whole else "no difference shown"
            )
    for name, (kind, more) in _COMPARED.items():
        pairs = _pairs(runs, others, attrgetter(name))
        if not pairs or (name == "seconds" and plan.equal != "examples"):
            continue
        if name == "time_to_target" and len(pairs) < max(len(runs), len(others)):
            verdicts[name] = "no difference shown"  # a miss is not a number: the rest alone would say too much
        elif kind == "ratio" and len(_ratios(pairs)) == len(pairs):
            verdicts[name] = ratio_verdict(pairs, higher_is_better=more)
        else:
            verdicts[name] = difference_verdict(pairs, higher_is_better=more)
    return verdicts


def columns_of(view: View) -> list[Column]:
    """Return the columns for which at least one arm has a figure, and those about the target if there is one."""
    has_target = view.summary.target is not None
    return [
        column
        for column in COLUMNS
        if any(column.of(arm) is not None for arm in view.summary.arms)
        or (has_target and column.field == "time_to_target")
    ]


def results_table(view: View) -> Markup:
    """Return a row for each arm. Every figure's cell has the value itself in `data-value`, and its arm."""
    summary, columns = view.summary, columns_of(view)
    has_target = summary.target is not None
    groups: list[tuple[str, int]] = []
    for column in columns:
        more = 1 + (has_target and column.field == "time_to_target")
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + more)
        else:
            groups.append((column.group, more))
    over = [element("th", words, scope="colgroup", colspan=many, class_="group") for words, many in groups]
    heads: list[Markup] = []
    for column in columns:
        heads.append(element("th", head(view, column), scope="col", title=column.meaning))
        if has_target and column.field == "time_to_target":
            heads.append(element("th", "target reached", scope="col", title="In so many runs of so many."))
    top = element("tr", element("th", "strategy", scope="col", rowspan=2), *over), element("tr", *heads)
    words = {column.field: column.alike(column.means(summary.arms)) for column in columns}
    rows = (_row(view, arm, columns, words) for arm in summary.arms)
    inside = element("table", element("thead", *top), element("tbody", *rows), class_="arms")
    return element(
        "div", inside, class_="scroll table-box", tabindex=0, role="region", aria_label="Results of all arms"
    )


def head(view: View, column: Column) -> str:
    """Return the head of a column."""
    metric = view.summary.metric
    if column.field == "quality" and metric is not None:
        return f"final {metric.name} {'↑' if metric.higher_is_better else '↓'}"
    if column.field == "time_to_target" and view.summary.target is not None:
        return view.time(f"time to {figure_in_words(view.summary.target).rstrip('0').rstrip('.')}")
    return view.time(column.head) if column.field == "examples_per_second" else column.head


def head_in_full(view: View, column: Column) -> str:
    """Return the head of a column without its group above it."""
    words = head(view, column)
    return f"speed-up {words}" if column.field in AGAINST_BASELINE else words


def _row(view: View, arm: ArmSummary, columns: list[Column], words: Mapping[str, Words]) -> Markup:
    cells: list[Markup] = []
    for column in columns:
        cells.append(_cell(arm, column, words[column.field]))
        if column.field == "time_to_target" and view.summary.target is not None:
            cells.append(_reached_cell(arm))
    return element("tr", _name(view, arm), *cells, class_="baseline" if arm.is_baseline else None)


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
    if len(arm.runs) == 1 and not failed and not awaited:
        chips.append(chip("one seed", "warn"))
    head = [_sign(view.looks[arm.name]), element("span", arm.name, class_="arm-name"), *chips]
    lines = [element("div", *head)]
    if small:
        lines.append(element("div", " · ".join(small), class_="small"))
    if len(arm.runs) > 1:
        lines.append(element("div", _seeds_in_words(arm), class_="small"))
    return element("th", *lines, scope="row", data_arm=arm.name, data_runs=str(len(arm.runs)), data_well=str(well))


def _seeds_in_words(arm: ArmSummary) -> str:
    if len(arm.seeds) == len(arm.runs):
        return counted(len(arm.seeds), "seed")
    which = f" ({listed([str(seed) for seed in arm.seeds])})" if arm.seeds else ""
    return f"{len(arm.seeds)} of {len(arm.runs)} seeds{which}"


def _sign(look: int) -> Markup:
    piece = element("path", d="M1 8L31 8", class_="line", stroke_dasharray=drawing.dashes_of(look) or None)
    parts = drawing.group(piece, drawing.marker(16, 8, look), class_=drawing.colour_of(look))
    return element("svg", parts, class_="sign", viewBox="0 0 32 16", width=32, height=16, aria_hidden="true")


def _cell(arm: ArmSummary, column: Column, write: Words) -> Markup:
    """Return the mean (bold if the arm is better beyond chance), its interval, and the comparison with the baseline."""
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
    if difference is not None and len(estimate.values) > 1:  # of one seed none can be shown, and the cell says so
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
        return "baseline", "What the others are held against."
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
    return [name.replace("|", "\\|"), *cells, NOTHING if reached is None else f"{reached[0]} of {reached[1]}"]


def _markdown_cell(estimate: Estimate | None, words: Words) -> str:
    """Write `0.62 (0.60 to 0.64, 5 seeds)`; the values of two seeds, and the only one of one."""
    if estimate is None:
        return NOTHING
    if estimate.low is None or estimate.high is None:
        count = len(estimate.values)
        each = f"{', '.join(map(words, estimate.values))}; {count} seeds" if count > 1 else "one seed"
        return f"{words(estimate.mean)} ({each})"
    mean, low, high = words(estimate.mean), words(estimate.low), words(estimate.high)
    spread = "" if low == mean == high else f"{low} to {high}, "
    return f"{mean} ({spread}{len(estimate.values)} seeds)"


def _judged(cell: str, difference: str | None) -> str:
    """Set a cell in bold if it is shown to be better, else add what is shown."""
    if difference is None or cell == NOTHING:
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
