"""The verdict: a sentence or a few lines, cautions, the table of all arms, and a chart of the speed-ups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale
from quorate.report.parts import HALF, View, figure, link, missing
from quorate.report.reading.planned import Planned
from quorate.report.results import (
    AGAINST_BASELINE,
    COLUMNS,
    NEEDS_TARGET,
    columns_of,
    head_in_full,
    legend_in_markdown,
    results_table,
    table_in_markdown,
)
from quorate.report.runs import seeds_in_words
from quorate.report.schema import NOT_BEGUN, ArmSummary, Estimate, Part
from quorate.report.topic import Arms, Topic
from quorate.report.topics.arrival import TOPIC as ARRIVAL
from quorate.report.topics.steps import TOPIC as STEPS
from quorate.report.wording import (
    counted,
    listed,
    number_in_words,
    ratios_alike,
    seconds_in_words,
    share_in_words,
)

NONE_SHOWN = "no difference shown"
IN_WORDS = {"better": "better", "worse": "worse", NONE_SHOWN: "not told apart"}
MOST = 4
"""The most arms, with the baseline, of which each has a line."""
_LONG = 150
"""Letters in a verdict, from which on it is set smaller."""
_ROW = 34.0
_STEPS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1000.0)
"""Ratios to which an axis reaches, up and down."""
Qualities = Mapping[str, Mapping[int, float]]
"""Final qualities by arm and seed, of runs that ended well."""


def verdict_of(plan: Planned, arms: Sequence[ArmSummary], qualities: Qualities) -> str:
    """Return a headline, of the fastest arm that is not worse, and a line for each other arm; limited by the intervals.

    Of more than `MOST` arms only the best and the worst have a line; the table has all.
    """
    if plan.is_single:
        return _of_one(plan, arms[0])
    baseline = next((arm for arm in arms if arm.is_baseline), None)
    others = [arm for arm in arms if arm is not baseline]
    if baseline is None or not others:
        return "\n".join(f"{_alone(arm, plan)}." for arm in arms)
    if not _is_measured(baseline):
        ended = "has ended yet" if _is_awaited(baseline) else "ended well"
        return f"No run of the baseline {baseline.name} {ended}, so nothing can be held against it."
    ranked = sorted(others, key=_rank, reverse=True)
    lines = [f"{_against(arm, baseline, plan, qualities)}." for arm in ranked]
    if len(arms) > MOST:
        more = len(ranked) - 2
        best, worst = f"Best of {len(ranked)}, {lines[0]}", f"Worst of {len(ranked)}, {lines[-1]}"
        lines = [best, worst, f"{counted(more, 'arm')} more {'is' if more == 1 else 'are'} in the table."]
    return "\n".join(lines)


def _rank(arm: ArmSummary) -> tuple[bool, bool, bool, float]:
    """Sort arms that were measured, are not worse, and reach the target in every run first; of these, the fastest."""
    speed = arm.target_speedup or arm.speedup
    is_worse = arm.differences.get("quality") == "worse"
    reaches = arm.target_reached is None or arm.target_reached[0] == arm.target_reached[1]
    return _is_measured(arm), not is_worse, reaches, 0.0 if speed is None else speed.mean


def _is_measured(arm: ArmSummary) -> bool:
    return STEPS.of(arm) is not None


def _is_awaited(arm: ArmSummary) -> bool:
    """Return whether none of its runs has failed, and none has ended."""
    return all(run.status is None for run in arm.runs)


def _nothing_of(arm: ArmSummary) -> str:
    return f"{arm.name}: no run {'has ended yet' if _is_awaited(arm) else 'ended well'}"


def _against(arm: ArmSummary, baseline: ArmSummary, plan: Planned, qualities: Qualities) -> str:
    if not _is_measured(arm):
        return _nothing_of(arm)
    parts = [
        _speed(arm, baseline, plan),
        _missed(arm, plan),
        _reaching(arm, baseline, plan, qualities),
        None if plan.world == "virtual" else _coding(arm, baseline),
    ]
    said = [part for part in parts if part]
    return f"{arm.name}: {'. '.join(said) or f'nothing was measured of it and of {baseline.name}'}"


def _speed(arm: ArmSummary, baseline: ArmSummary, plan: Planned) -> str | None:
    if arm.target_speedup is not None and arm.target_reached is not None and len(set(arm.target_reached)) == 1:
        metric = "" if plan.metric is None else f"{plan.metric.name} "
        to = "" if plan.target is None else f" to {metric}{plan.target:g}"
        return f"{_times(arm.target_speedup)} times as fast as {baseline.name}{to} ({_spread(arm.target_speedup)})"
    if arm.speedup is None:
        return None
    return f"{_times(arm.speedup)} times as fast as {baseline.name} ({_spread(arm.speedup)})"


def _missed(arm: ArmSummary, plan: Planned) -> str | None:
    if plan.target is None or arm.target_reached is None or arm.target_reached[0] == arm.target_reached[1]:
        return None
    reached, of = arm.target_reached
    metric = "" if plan.metric is None else f"{plan.metric.name} "
    return f"The target, {metric}{plan.target:g}, is reached in {reached} of {counted(of, 'run')}"


def _reaching(arm: ArmSummary, baseline: ArmSummary, plan: Planned, qualities: Qualities) -> str | None:
    if plan.metric is None or arm.quality is None:
        return None
    name = plan.metric.name
    ours, theirs = qualities.get(arm.name, {}), qualities.get(baseline.name, {})
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        why = "" if baseline.quality is None else f"; {baseline.name} has no run of an equal seed"
        return f"Quality: {name} {number_in_words(arm.quality.mean)}{why}"
    own, other = (number_in_words(statistics.fmean(side[seed] for seed in both)) for side in (ours, theirs))
    difference = arm.differences.get("quality", NONE_SHOWN)
    of = f" ({seeds_in_words(both)} alone)" if len(both) < len(ours.keys() | theirs.keys()) else ""
    return f"Quality: {IN_WORDS.get(difference, difference)}, {name} {own} against {other}{of}"


def _coding(arm: ArmSummary, baseline: ArmSummary) -> str | None:
    difference = coding_of(arm, baseline)
    return None if difference is None else f"Its codec {difference}"


def coding_of(arm: ArmSummary, baseline: ArmSummary) -> str | None:
    """Describe the savings and costs of the codec of an arm if the baseline has none; None otherwise.

    Virtual time does not include the costs of coding.
    """
    if not arm.settings.get("compress") or baseline.settings.get("compress"):
        return None
    steps, baseline_steps = STEPS.of(arm), STEPS.of(baseline)
    assert steps is not None
    assert baseline_steps is not None
    saved = baseline_steps.shares["communication"] - steps.shares["communication"]
    cost = sum(steps.shares[name] - baseline_steps.shares[name] for name in ("encode", "decode"))
    said = [f"{'saves' if saved > 0 else 'adds'} {seconds_in_words(abs(saved))} of communication a step"]
    said.append(f"{'costs' if cost > 0 else 'saves'} {seconds_in_words(abs(cost))} of coding")
    if arm.bytes_per_step is not None and baseline.bytes_per_step is not None and baseline.bytes_per_step.mean > 0:
        said.append(f"sends {number_in_words(arm.bytes_per_step.mean / baseline.bytes_per_step.mean)} times the bytes")
    return f"{listed(said)}: {'faster' if saved > cost else 'slower'} here"


def _times(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f}"


def _spread(estimate: Estimate) -> str:
    """`0.98 to 1.04, 5 seeds`; of two `0.98 and 1.04, 2 seeds`; or `one seed`."""
    count = len(estimate.values)
    if estimate.low is not None and estimate.high is not None:
        return f"{estimate.low:.2f} to {estimate.high:.2f}, {count} seeds"
    if count < 2:
        return "one seed"
    return f"{listed([f'{value:.2f}' for value in estimate.values])}, {count} seeds"


def _alone(arm: ArmSummary, plan: Planned) -> str:
    steps = STEPS.of(arm)
    if steps is None:
        return _nothing_of(arm)
    said = list[str]()
    if plan.metric is not None and arm.quality is not None:
        said.append(f"reaches {plan.metric.name} {number_in_words(arm.quality.mean)}")
    if arm.examples_per_second is not None:
        said.append(f"does {number_in_words(arm.examples_per_second.mean)} examples per second")
    return f"{arm.name} {' and '.join(said or ['took ' + counted(steps.count, 'step')])}"


def _of_one(plan: Planned, arm: ArmSummary) -> str:
    steps, arrival = STEPS.of(arm), ARRIVAL.of(arm)
    if steps is None:
        return "No worker left the steps it takes to say anything of this run."
    per_rank = f"steps of {seconds_in_words(steps.p50)} (median)"
    rate = "" if arm.examples_per_second is None else f", {number_in_words(arm.examples_per_second.mean)} examples/s"
    ideal = "" if arm.no_wait_share is None else f", {share_in_words(arm.no_wait_share.mean)} of the no-wait ideal"
    end = ""
    if plan.metric is not None and arm.quality is not None:
        end = f", {plan.metric.name} {number_in_words(arm.quality.mean)} at the end"
    who = "" if arrival is None else f"; {arrival.sentence}"
    return f"{counted(plan.workers, 'worker')} took {per_rank}{rate}{ideal}{end}{who}."


def _body(view: View, arms: Arms[Part]) -> Iterator[Markup]:
    summary = view.summary
    yield _sentence(summary.verdict)
    yield _warnings(view)
    yield results_table(view) if summary.arms else missing("There are no arms in this comparison.")
    yield _failures(view)
    yield _meanings(view)
    yield _ratios(view)


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


def _markdown(view: View, arms: Arms[Part]) -> list[str]:
    summary = view.summary
    parts = [f"# {summary.title}", summary.verdict]
    if summary.world == "virtual":
        parts.append("Times are virtual: the result of a simulation, not a measurement.")
    if summary.warnings:
        parts.append("\n".join(f"- Caution: {warning}." for warning in summary.warnings))
    return [*parts, table_in_markdown(summary), legend_in_markdown(summary)]


TOPIC = Topic[None, Part](name="verdict", title="Verdict", body=_body, markdown=_markdown)
