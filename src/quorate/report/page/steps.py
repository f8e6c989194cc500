"""Time per step: the lengths of steps, and their parts."""

from __future__ import annotations

from quorate.report.charts.activities import SHOWN, words_of
from quorate.report.charts.histogram import Histogram, histograms
from quorate.report.charts.markup import Markup, element
from quorate.report.charts.shares import Spending, share_chart
from quorate.report.page.parts import View, figure, missing, section, table
from quorate.report.schema import ArmSummary, StepTimes
from quorate.report.wording import seconds_alike, seconds_in_words, share_in_words

LEAD = (
    "All ranks and seeds together, warm-up left out. Waiting is what a rank lost to others that came later; "
    "communication is what it lost to bytes that moved after the last one had come. A pace stands for compute; "
    "lateness was injected on top of it."
)
HEIGHTS = "Heights are shares of an arm's steps, on one scale; the last bin also holds what took longer."


def steps(view: View) -> Markup:
    """Return section 4 of the page."""
    arms = [(arm, arm.steps) for arm in view.summary.arms if arm.steps is not None and arm.steps.counts]
    if not arms:
        return section(
            "steps", "Time per step", LEAD, missing("No arm has steps after its warm-up, so there are none to show.")
        )
    absent = view.left_out(
        (arm for arm in view.summary.arms if arm.steps is None), "no step after the warm-up is known"
    )
    return section("steps", "Time per step", LEAD, _shares(view, arms, absent), _histograms(view, arms, absent))


def _shares(view: View, arms: list[tuple[ArmSummary, StepTimes]], absent: str) -> Markup:
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


def _histograms(view: View, arms: list[tuple[ArmSummary, StepTimes]], absent: str) -> Markup:
    rows = [
        Histogram(
            name=arm.name,
            look=view.looks[arm.name],
            edges=times.edges,
            counts=times.counts,
            percentiles=(times.p50, times.p95, times.p99),
        )
        for arm, times in arms
    ]
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
        "How long steps took",
        lambda width: histograms(rows, title=title, width=width, label=f"Histograms of step times. {described}"),
        note=f"{HEIGHTS} {absent}".strip(),
        numbers=numbers,
    )
