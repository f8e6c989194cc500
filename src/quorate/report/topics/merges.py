"""Merges of learners that never wait: members with their weights and ages, and the waits for members."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quorate.records.live_figures import merged_in
from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import scale_of
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import View, figure, framed, nothing, paragraphs, table
from quorate.report.reading.rounds import RoundRecord
from quorate.report.schema import ArmSummary, Part
from quorate.report.topic import Arms, Topic
from quorate.report.wording import numbers_alike, seconds_alike, share_in_words, shares_alike

LEAD = (
    "Learners that never wait contribute their deltas, and each outer step merges those that have arrived. A delta is "
    "weighted by the steps since its learner was last merged. A learner that misses a merge of a fragment is in the "
    "next one, with a larger age."
)
MEANINGS = (
    "Weights are shares of each merge, summed over all merges. The age of a delta is the number of rounds of its "
    "fragment since it was contributed. The window is the time that a round waited for more learners than it needed."
)
LANES = 24
SHOWN = 400
"""The most merges that are drawn: the last ones."""
_ROW = 22.0
_SIZES = (3.0, 5.0, 7.0, 9.0, 11.0, 14.0)
"""Widths of dots, for weights from none to all."""


class Merge(Part):
    """The contributions to an outer step of learners that never wait."""

    number: int
    """The number of its round."""
    fragment: int | None
    """From 0; null if it was of all."""
    time: float
    """Seconds of the run's training time."""
    given: tuple[tuple[int, float, int], ...]
    """The rank, its share of the weight, and its age: rounds of the fragment since it was contributed."""


class MergesSummary(Part):
    """Merges of learners that never wait; of all runs that count together."""

    count: int
    window_mean: float | None
    """Seconds that a round waited for more learners than it needed; null if there is no such window."""
    window_p95: float | None
    shares: tuple[tuple[int, float, float], ...]
    """By rank: its share of the weight of all merges, and the mean age of its contributions."""
    shown: tuple[Merge, ...]
    """The last ones of the first run."""


@dataclass(frozen=True, kw_only=True)
class MergeFigures:
    """The merges of one run."""

    shown: Sequence[Merge]
    count: int
    windows: Sequence[float]
    """Seconds; empty if no window."""
    weights: dict[int, float]
    """By rank: the sum of its shares of merges."""
    ages: dict[int, float]
    """By rank: the mean age of its merged deltas, weighted by shares."""


def merges_of(run: MeasuredRun) -> MergeFigures | None:
    """Return the merges of a run; None if no weights were recorded."""
    rounds = [update.round for update in run.merged]
    return figures_of_merges(rounds, run.records.training_seconds) if rounds else None


def figures_of_merges(rounds: Sequence[RoundRecord], seconds_at: Callable[[float], float]) -> MergeFigures | None:
    """Return the merges of `rounds`; None if no weights were recorded.

    `seconds_at` converts a time to seconds of the run's training.
    """
    merges = [merge for record in rounds if (merge := _merge(record, seconds_at)) is not None]
    if not merges:
        return None
    weights, old = defaultdict[int, float](float), defaultdict[int, float](float)
    for merge in merges:
        for rank, share, age in merge.given:
            weights[rank] += share
            old[rank] += share * age
    return MergeFigures(
        shown=merges[-SHOWN:],
        count=len(merges),
        windows=[record.window for record in rounds if record.window is not None and record.headers],
        weights=dict(weights),
        ages={rank: old[rank] / weight for rank, weight in weights.items() if weight},
    )


def _merge(record: RoundRecord, seconds_at: Callable[[float], float]) -> Merge | None:
    merged = merged_in(record.number, record.headers, record.taken, settles=record.settles)
    if merged is None:
        return None
    return Merge(number=record.number, fragment=merged.fragment, time=seconds_at(record.time), given=merged.shares)


def merges_summary(runs: Sequence[MergeFigures]) -> MergesSummary | None:
    """Return the summary of all runs of an arm together; the merges that are drawn are those of the first."""
    if not runs:
        return None
    windows = sorted(window for run in runs for window in run.windows)
    ranks = sorted({rank for run in runs for rank in run.weights})
    total = sum(weight for run in runs for weight in run.weights.values())
    weights = {rank: sum(run.weights.get(rank, 0.0) for run in runs) for rank in ranks}
    old = {rank: sum(run.weights.get(rank, 0.0) * run.ages.get(rank, 0.0) for run in runs) for rank in ranks}
    return MergesSummary(
        count=sum(run.count for run in runs),
        window_mean=statistics.fmean(windows) if windows else None,
        window_p95=windows[round(0.95 * (len(windows) - 1))] if windows else None,
        shares=tuple((rank, weights[rank] / total, old[rank] / weights[rank]) for rank in ranks if weights[rank]),
        shown=tuple(runs[0].shown),
    )


def _body(view: View, arms: Arms[MergesSummary]) -> Iterator[Markup]:
    yield _table(view, arms)
    for arm, summary in arms:
        if len(summary.shown) > 1:
            yield _chart(view, arm, summary)


def _table(view: View, summaries: Arms[MergesSummary]) -> Markup:
    heads = ["strategy", "rank", "share of weight", "mean age", "merges", "window, mean", "window, p95"]
    rows = []
    seconds = seconds_alike(
        seconds_of_window for _, summary in summaries for seconds_of_window in (summary.window_mean, summary.window_p95)
    )
    shares = shares_alike(share for _, summary in summaries for _, share, _ in summary.shares)
    ages = numbers_alike(age for _, summary in summaries for _, _, age in summary.shares)
    for arm, summary in summaries:
        windows = [
            nothing("no window") if window is None else seconds(window)
            for window in (summary.window_mean, summary.window_p95)
        ]
        for place, (rank, share, age) in enumerate(summary.shares):
            once = [arm.name, f"{summary.count:,}", *windows] if place == 0 else ["", "", "", ""]
            rows.append([once[0], f"rank {rank}", shares(share), ages(age), *once[1:]])
    return framed(view, "Merges by learner", table(heads, rows), paragraphs(MEANINGS))


def _chart(view: View, arm: ArmSummary, summary: MergesSummary) -> Markup:
    ranks = sorted({rank for merge in summary.shown for rank, _, _ in merge.given})
    lanes = {rank: lane for lane, rank in enumerate(ranks[:LANES])}
    dots = [
        MergeDots(merge.time, [(lanes[rank], share, age > 0) for rank, share, age in merge.given if rank in lanes])
        for merge in summary.shown
    ]
    shares = ", ".join(f"rank {rank} {share_in_words(share)}" for rank, share, _ in summary.shares[:LANES])
    note = f"The last {len(dots)} of {summary.count:,} merges." if summary.count > len(dots) else ""
    if len(ranks) > LANES:
        note += f" {LANES} of {len(ranks)} ranks."
    return figure(
        view,
        f"Merges of {arm.name}",
        lambda width: merge_chart(
            [f"rank {rank}" for rank in lanes],
            dots,
            title="training time",
            width=width,
            label=f"Merges of {arm.name} over time. Shares of weight: {shares}.",
        ),
        note=note.strip(),
    )


@dataclass(frozen=True)
class MergeDots:
    """One merge: its time, and its members as (lane, share of the weight, is it late)."""

    time: float
    members: Sequence[tuple[int, float, bool]]


def merge_chart(lanes: Sequence[str], merges: Sequence[MergeDots], *, title: str, width: float, label: str) -> Markup:
    """Draw dots whose areas are as weights; the dot of a late contribution is hollow."""
    top = 30.0
    left = min(110.0, max(drawing.text_width(name) for name in lanes) + 12.0)
    foot = top + _ROW * len(lanes)
    times = [merge.time for merge in merges]
    x = scale_of([min(times), max(times)], left + 8.0, width - 12.0, kind="seconds")
    parts: list[str] = [_key(), drawing.axis_below(x, foot, top, title, most=8)]
    for place, name in enumerate(lanes):
        y = top + _ROW * (place + 0.5)
        parts.append(drawing.text(left - 8, y + 4, name, class_="row-name", anchor="end"))
    dots: dict[tuple[float, bool], list[str]] = defaultdict(list)
    for merge in merges:
        for lane, share, is_late in merge.members:
            size = _SIZES[min(len(_SIZES) - 1, int(share**0.5 * len(_SIZES)))]
            dots[size, is_late].append(f"M{x(merge.time):.1f} {number(top + _ROW * (lane + 0.5))}h0")
    parts += [_dots("".join(d), size, is_late=is_late) for (size, is_late), d in sorted(dots.items(), reverse=True)]
    return drawing.svg(width, foot + 42.0, *parts, label=label)


def _dots(d: str, size: float, *, is_late: bool) -> Markup:
    kind = "late" if is_late else "fresh"
    return joined(
        element("path", d=d, class_=f"merge-{part} {kind}", stroke_width=number(wide))
        for part, wide in (("rim", size + 1.6), ("dot", size - 1.0 if is_late else size))
    )


def _key() -> Markup:
    parts: list[str] = []
    x = 8.0
    for words, size, is_late in (
        ("full weight", _SIZES[-1], False),
        ("little", _SIZES[0], False),
        ("late", 9.0, True),
    ):
        parts.append(_dots(f"M{number(x)} 12h0", size, is_late=is_late))
        parts.append(drawing.text(x + 12.0, 16.0, words, class_="key"))
        x += 34.0 + drawing.text_width(words)
    return joined(parts)


TOPIC = Topic(
    name="merges",
    title="Merges",
    lead=LEAD,
    part=MergesSummary,
    measure=merges_of,
    summarize=merges_summary,
    body=_body,
)
