"""Time per step: the lengths of steps, and their parts."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.activities import SHOWN, Spending, share_chart, words_of
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale, scale_of
from quorate.report.figures.run import MeasuredRun
from quorate.report.figures.time_use import ACTIVITIES, Spent
from quorate.report.parts import View, figure, table
from quorate.report.schema import Part
from quorate.report.statistics import quantile
from quorate.report.topic import Arms, Topic
from quorate.report.wording import seconds_alike, seconds_in_words, share_in_words

LEAD = (
    "All ranks and seeds together, without the warm-up. Waiting is the time lost to ranks that arrived later; "
    "communication is the time lost to the exchange after the last arrival. A minimum step time "
    "counts as compute, and delays come in addition to it; both are injected."
)
HEIGHTS = "Heights are shares of the steps of an arm, on one scale; the last bin includes all longer steps."
BINS = 40
TAIL = 1.25
"""The histogram ends at so many times the 99th percentile, unless the longest step is shorter."""
_TALL = 54.0
_ROW = 92.0
_LEFT = 50.0
"""The room for the shares at the left."""
_MARKS = (("p50", ""), ("p95", "6 3"), ("p99", "2 2"))


class StepTimes(Part):
    """The lengths of steps, over all ranks and seeds, without the warm-up."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    edges: tuple[float, ...]
    """The edges of the histogram's bins, the same for all arms; the last bin also holds longer steps."""
    counts: tuple[int, ...]
    shares: dict[str, float]
    """Mean seconds of a step by activity; together they are `mean`. The order: data, compute, pace (injected, counts as
    compute), delay (injected lateness), encode, waiting (for others), exposed communication, decode, update, other."""


@dataclass
class StepLengths:
    """The steps of one run."""

    lengths: Sequence[float]
    """Their seconds, sorted."""
    totals: Sequence[float]
    """Their seconds by activity."""
    edges: Sequence[float] = ()
    """The edges of the bins of all runs."""


def lengths_of(run: MeasuredRun) -> StepLengths:
    """Return the lengths of the steps of a run."""
    return StepLengths(sorted(times.seconds for times in run.spent), totals_of(run.spent))


def _align(runs: Sequence[StepLengths]) -> None:
    edges = edges_for([run.lengths for run in runs])
    for run in runs:
        run.edges = edges


def edges_for(arms: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """Return bins for the step times of all arms (sorted, seconds); no bins without steps."""
    measured = [lengths for lengths in arms if lengths]
    if not measured:
        return ()
    low = min(lengths[0] for lengths in measured)
    high = max(min(lengths[-1], TAIL * quantile(lengths, 0.99)) for lengths in measured)
    if high - low < 0.01 * high:  # all steps are equally long, but for the clock's last digits
        low, high = low * 0.95, high * 1.04
    return (*(low + (high - low) * number / BINS for number in range(BINS)), high)


def totals_of(spent: Iterable[Spent]) -> tuple[float, ...]:
    """Return the seconds by activity, over all these steps."""
    totals = [0.0] * len(ACTIVITIES)
    for times in spent:
        for place, seconds in enumerate(times.by):
            totals[place] += seconds
    return tuple(totals)


def step_times(runs: Sequence[StepLengths]) -> StepTimes | None:
    """Return the times of the steps of all runs of an arm; None without steps."""
    lengths, edges = sorted(length for run in runs for length in run.lengths), runs[0].edges
    if not lengths:
        return None
    totals = [sum(column) for column in zip(*(run.totals for run in runs), strict=True)]
    counts = [0] * (len(edges) - 1)
    for length in lengths:
        counts[min(max(bisect_right(edges, length) - 1, 0), len(counts) - 1)] += 1
    return StepTimes(
        count=len(lengths),
        mean=statistics.fmean(lengths),
        p50=quantile(lengths, 0.50),
        p95=quantile(lengths, 0.95),
        p99=quantile(lengths, 0.99),
        edges=tuple(edges),
        counts=tuple(counts),
        shares={name: total / len(lengths) for name, total in zip(ACTIVITIES, totals, strict=True)},
    )


def _body(view: View, arms: Arms[StepTimes]) -> Iterator[Markup]:
    absent = view.left_out([arm.name for arm, _ in arms], "no step after the warm-up was recorded")
    yield _shares(view, arms, absent)
    yield _histograms(view, arms, absent)


def _shares(view: View, arms: Arms[StepTimes], absent: str) -> Markup:
    spendings = [Spending(arm.name, times.shares) for arm, times in arms]
    described = " ".join(
        f"{spending.name}: {seconds_in_words(spending.total)}, of which "
        + ", ".join(
            f"{words_of(name)} {share_in_words(spending.seconds[name] / spending.total)}"
            for name in sorted(spending.seconds, key=lambda name: -spending.seconds[name])
            if spending.total > 0.0 and spending.seconds[name] / spending.total >= 0.01
        )
        + "."
        for spending in spendings
    )
    title = view.time("time of the mean step")
    return figure(
        view,
        "Where the mean step went",
        lambda width: share_chart(
            spendings, title=title, width=width, label=f"Stacked bars of the mean step. {described}"
        ),
        note=absent,
        numbers=_numbers(spendings),
    )


def _numbers(spendings: list[Spending]) -> Markup:
    names = [name for name in SHOWN if any(spending.seconds.get(name, 0.0) > 0.0 for spending in spendings)]
    values = [[*(spending.seconds.get(name, 0.0) for name in names), spending.total] for spending in spendings]
    return _table(["strategy", *map(words_of, names), "mean step"], [[spending.name] for spending in spendings], values)


def _table(heads: list[str], names: list[list[str]], values: list[list[float]]) -> Markup:
    words = seconds_alike(seconds for row in values for seconds in row)
    cells = [[element("span", words(seconds), data_value=repr(seconds)) for seconds in row] for row in values]
    return table(heads, [[*name, *row] for name, row in zip(names, cells, strict=True)])


def _histograms(view: View, arms: Arms[StepTimes], absent: str) -> Markup:
    described = " ".join(
        f"{arm.name}: p50 {seconds_in_words(times.p50)}, p95 {seconds_in_words(times.p95)}, "
        f"p99 {seconds_in_words(times.p99)} of {times.count:,} steps."
        for arm, times in arms
    )
    title = view.time("step time")
    numbers = _table(
        ["strategy", "steps", "mean", "p50", "p95", "p99"],
        [[arm.name, f"{times.count:,}"] for arm, times in arms],
        [[times.mean, times.p50, times.p95, times.p99] for _, times in arms],
    )
    return figure(
        view,
        "Step times",
        lambda width: histograms(
            arms, view.looks, title=title, width=width, label=f"Histograms of step times. {described}"
        ),
        note=f"{HEIGHTS} {absent}".strip(),
        numbers=numbers,
    )


def histograms(arms: Arms[StepTimes], looks: Mapping[str, int], *, title: str, width: float, label: str) -> Markup:
    """Draw bars as shares of an arm's steps, on one axis from 0 for all arms; lines mark p50, p95 and p99."""
    narrow = width < drawing.NARROW
    top = 4.0
    bottom = top + _ROW * len(arms)
    edges = [edge for _, times in arms for edge in (*times.edges, *_percentiles(times))]
    x = scale_of(edges, _LEFT, width - 8.0, kind="seconds", from_zero=min(edges) < 0.4 * max(edges))
    shares = [count / max(1, sum(times.counts)) for _, times in arms for count in times.counts]
    seconds = seconds_alike(percentile for _, times in arms for percentile in _percentiles(times))
    parts = [drawing.axis_below(x, bottom, top + 18, title, most=4 if narrow else 8)]
    for place, (arm, times) in enumerate(arms):
        foot, percentiles = top + _ROW * (place + 1), _percentiles(times)
        y = scale_of(shares, foot, foot - _TALL, from_zero=True, round_ends=True)
        colour = drawing.colour_of(looks[arm.name])
        parts.append(_heights(y, x))
        parts.append(drawing.group(element("title", arm.name), *_bars(times, x, y), class_=colour))
        parts.append(_marks(percentiles, x, foot))
        parts.append(
            drawing.group(*_heading(arm.name, foot - _ROW + 18, width, [*map(seconds, percentiles)]), class_=colour)
        )
    return drawing.svg(width, bottom + 42.0, *parts, label=label)


def _percentiles(times: StepTimes) -> tuple[float, float, float]:
    return times.p50, times.p95, times.p99


def _heights(y: Scale, x: Scale) -> Markup:
    places = 1 if y.high < 0.1 else 0
    parts = []
    for share in (0.0, y.high / 2.0, y.high):
        at = y(share)
        parts += [drawing.line(x.begin, at, x.end, at, class_="grid")] if share else []
        if share != y.high / 2.0:
            words = "0" if share == 0.0 else f"{share:.{places}%}"
            parts.append(drawing.text(x.begin - 14.0, at + 4.0, words, class_="tick", anchor="end"))
    return joined(parts)


def _bars(times: StepTimes, x: Scale, y: Scale) -> list[Markup]:
    total = max(1, sum(times.counts))
    strokes = []
    for low, high, count in zip(times.edges, times.edges[1:], times.counts, strict=False):
        if count:
            begin, end = x(low), x(high)
            strokes.append(
                f"M{begin:.1f} {y.begin:.1f}V{y(count / total):.1f}H{max(end, begin + 1):.1f}V{y.begin:.1f}Z"
            )
    area = [element("path", d="".join(strokes), class_="bins")] if strokes else []
    return [*area, drawing.line(x.begin, y.begin, x.end, y.begin, class_="axis")]


def _marks(percentiles: Sequence[float], x: Scale, foot: float) -> Markup:
    parts: list[str] = []
    last = -100.0
    for (name, dashes), value in zip(_MARKS, percentiles, strict=True):
        at = x(value)
        parts.append(drawing.line(at, foot - _TALL - 2, at, foot, class_="percentile", dashes=dashes))
        if at - last >= 26.0:
            parts.append(drawing.text(at, foot - _TALL - 5, name, class_="mark-label halo", anchor="middle"))
            last = at
    return joined(parts)


def _heading(name: str, y: float, width: float, figures: Sequence[str]) -> list[Markup]:
    named = " · ".join(f"{mark} {words}" for (mark, _), words in zip(_MARKS, figures, strict=True))
    words = " / ".join(figures) if width < drawing.NARROW else named
    name = drawing.shortened(name, width - drawing.text_width(words) - 24, 13)
    return [drawing.text(0, y, name, class_="name halo"), drawing.text(width, y, words, class_="small", anchor="end")]


TOPIC = Topic(
    name="steps",
    title="Time per step",
    lead=LEAD,
    part=StepTimes,
    measure=lengths_of,
    align=_align,
    summarize=step_times,
    body=_body,
    missing="No arm has steps after the warm-up.",
    data={
        "step_times": ("from to count", lambda times: zip(times.edges, times.edges[1:], times.counts, strict=False)),
        "shares": ("activity seconds", lambda times: times.shares.items()),
    },
)
