"""Arrival skew: slow ranks, measured where workers meet, never by step times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import scale_of
from quorate.report.figures.lateness import COLUMNS, Skew, slow_ranks_in_words
from quorate.report.parts import View, alike, figure, missing, paragraphs, sentence, table
from quorate.report.schema import Part
from quorate.report.topic import Arms, Row, Topic, by_arm
from quorate.report.wording import seconds_alike, seconds_in_words, share_in_words, shares_alike

LEAD = (
    "Lateness is the time between the first rank's arrival at the meeting point and this rank's. If every rank waits "
    "for every other, all have the same step time, and only lateness shows which one is slow."
)
APART = (
    "The workers did not all wait for each other, so there was no meeting point. The chart shows how much longer each "
    "rank needed for a step than the fastest rank needed for the step of the same number. So late it would have been "
    "if all had waited."
)
MISSING = "No run with two or more ranks ended well, so lateness is unknown."
MANY_ARMS = 4
"""With more arms than this, heat maps are coarser, so that the page stays small."""
LATEST = 16
"""Ranks in the table, if there are more than rows in the chart."""
_NAMED = 8
"""The most ranks in the words for readers who do not see the chart."""
ALIKE = 0.05
"""Step times that differ by no more than this share are alike."""
ROWS = 64
"""The most rows: of more ranks, several share one."""
LEVELS = 6
"""Shades of the heat map above "nothing"."""
_FINE = 16
"""The number of rows from which on they are thin, and only some are labelled."""
Heat = Sequence[Sequence[float | None]]


class RankArrival(Part):
    """The arrivals of one rank at the meeting point, over all steps of one run; see `Arrival.is_together`."""

    rank: int
    lateness_mean: float
    """Seconds after the first one to arrive."""
    lateness_p95: float
    last_share: float
    """The share of steps in which it came last."""
    step_mean: float
    """Its own mean step time: under a strategy that waits, the same for all."""


class Arrival(Part):
    """The slow ranks, measured at the meeting point, in the first run of an arm that ended well."""

    seed: int
    is_together: bool
    """Whether everybody waited for everybody. If not, there was no meeting point. Lateness is then how much longer a
    rank computed its step than the fastest rank computed its step of equal number, as if all had begun together.
    """
    ranks: tuple[RankArrival, ...]
    slow_rank: int | None
    """The rank that is significantly slower than the others; null if there is none."""
    sentence: str
    """The finding, as a sentence."""
    steps: tuple[int, ...]
    """The first step of each column of the heat map; they rise."""
    heat: tuple[tuple[float | None, ...], ...]
    """Mean lateness by rank (rows) and range of steps (columns)."""


def arrival_of(skew: Skew, seed: int) -> Arrival:
    """Return the arrival of a run for `summary.json`."""
    ranks = tuple(
        RankArrival(
            rank=rank.rank,
            lateness_mean=rank.mean,
            lateness_p95=rank.p95,
            last_share=rank.last_share,
            step_mean=rank.step_mean,
        )
        for rank in skew.ranks
    )
    return Arrival(
        seed=seed,
        is_together=skew.is_together,
        ranks=ranks,
        slow_rank=skew.slow[0].rank if skew.slow else None,
        sentence=sentence_of(skew),
        steps=skew.columns,
        heat=skew.heat,
    )


def sentence_of(skew: Skew) -> str:
    """Return the sentence about slow ranks, without a full stop."""
    if not skew.is_together:
        return _of_pace(skew)
    return _of_the_late(skew) if skew.slow else _of_nobody(skew)


def _of_the_late(skew: Skew) -> str:
    """Write `rank 3 arrived last in 97% of the steps, 182 ms after the first; its mean step, 311 ms, is as long ...`"""
    steps = "their mean steps" if len(skew.slow) > 1 else "its mean step"
    return f"{slow_ranks_in_words(skew)}; {steps}, {_compared(skew)}"


def _compared(skew: Skew) -> str:
    slow_mean = statistics.fmean(rank.step_mean for rank in skew.slow)
    others_mean = statistics.fmean(rank.step_mean for rank in skew.others)
    if abs(slow_mean - others_mean) <= ALIKE * others_mean:
        return f"{seconds_in_words(slow_mean)}, is as long as that of the others"
    return f"{seconds_in_words(slow_mean)}, differs from that of the others, {seconds_in_words(others_mean)}"


def _of_nobody(skew: Skew) -> str:
    least = statistics.median(rank.mean for rank in skew.ranks) + skew.step_matters
    often = [rank for rank in skew.ranks if rank.is_often_last and rank.mean > least]
    if not often:
        last = seconds_in_words(skew.last_median)
        return f"{slow_ranks_in_words(skew)}; the last one arrives {last} after the first (median)"
    worst = max(often, key=lambda worst: worst.mean)
    return (
        f"no rank is late in most steps, but rank {worst.rank} is last in {share_in_words(worst.last_share)} of them "
        f"({share_in_words(1 / len(skew.ranks))} by chance), up to {seconds_in_words(worst.p95)} after the first (p95)"
    )


def _of_pace(skew: Skew) -> str:
    if skew.slow:
        return f"the workers do not all wait for each other: {slow_ranks_in_words(skew)}"
    last = seconds_in_words(skew.last_median)
    return (
        f"the workers do not all wait for each other, and {slow_ranks_in_words(skew)}; if all had waited, the last one "
        f"would have arrived {last} after the first (median)"
    )


def _body(view: View, arms: Arms[Arrival]) -> Iterator[Markup]:
    arrivals = [(arm.name, arrival) for arm, arrival in arms if arrival.ranks]
    if not arrivals:
        return
    columns = COLUMNS if len(arrivals) <= MANY_ARMS else COLUMNS // 3
    heats = [coarser(arrival.heat, ROWS, columns) for _, arrival in arrivals]
    longest = max(rank.lateness_p95 for _, arrival in arrivals for rank in arrival.ranks)
    darkest = max(_late(heat) for heat in heats)
    for (name, arrival), heat in zip(arrivals, heats, strict=True):
        yield _arm(view, name, arrival, heat, longest, darkest)
    yield paragraphs("All arms are on one scale." if len(arrivals) > 1 else "")
    yield missing(view.left_out([arm.name for arm, _ in arms], "no arrivals are known"))


def _late(heat: Heat) -> float:
    """Return the lateness of the darkest shade: 98% of columns are below, so one halt does not pale all others."""
    columns = zip(*heat, strict=True)
    latest = sorted(max(times) for column in columns if (times := [cell for cell in column if cell is not None]))
    return latest[min(len(latest) - 1, int(0.98 * len(latest)))] if latest else 0.0


def _arm(view: View, name: str, arrival: Arrival, heat: Heat, longest: float, darkest: float) -> Markup:
    rows = rows_of(arrival)
    columns = max((len(row) for row in heat), default=0)
    wide = -(-len(arrival.steps) // columns) if columns else 1
    steps = arrival.steps[::wide][:columns]
    lateness = ArrivalRows(
        rows=rows, heat=heat, steps=steps, longest=longest, darkest=darkest, is_together=arrival.is_together
    )
    chart = f"Bars of lateness by rank, and a heat map of rank by step, for {name}."
    explained = "" if arrival.is_together else f"{APART} "
    label = f"{chart} {explained}{sentence(arrival.sentence)} {_in_words(arrival)}"
    title = view.time(f"{'lateness' if arrival.is_together else 'longer per step'}; bar: mean, line: to p95")
    note = f"{explained}Seed {arrival.seed}."
    if len(rows) < len(arrival.ranks):
        note += " Each row stands for several ranks and shows the latest of them."
    return figure(
        view, name, lambda width: arrival_chart(lateness, title=title, width=width, label=label),
        finding=arrival.sentence, note=note, numbers=_numbers(arrival),
    )  # fmt: skip


def rows_of(arrival: Arrival) -> list[ArrivalRow]:
    """Return a row for each rank; of more than `ROWS`, for as many consecutive ranks as needed."""
    together = -(-len(arrival.ranks) // ROWS)
    rows = []
    for first in range(0, len(arrival.ranks), together):
        ranks = arrival.ranks[first : first + together]
        is_slow = any(rank.rank == arrival.slow_rank for rank in ranks)
        name = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{ranks[0].rank}–{ranks[-1].rank}"
        rows.append(
            ArrivalRow(
                name=f"{name} ({'' if len(ranks) == 1 else f'{arrival.slow_rank} '}slow)" if is_slow else name,
                mean=max(rank.lateness_mean for rank in ranks),
                p95=max(rank.lateness_p95 for rank in ranks),
                note=f"{_last(arrival)} in {share_in_words(ranks[0].last_share)} of the steps"
                if len(ranks) == 1
                else "",
                is_slow=is_slow,
            )
        )
    return rows


def _in_words(arrival: Arrival) -> str:
    latest = sorted(arrival.ranks, key=lambda rank: -rank.lateness_mean)[:_NAMED]
    return " ".join(
        f"Rank {rank.rank}: mean {seconds_in_words(rank.lateness_mean)}, "
        f"p95 {seconds_in_words(rank.lateness_p95)}, {_last(arrival)} in {share_in_words(rank.last_share)}."
        for rank in latest
    )


def _last(arrival: Arrival) -> str:
    return "last" if arrival.is_together else "slowest"


def _numbers(arrival: Arrival) -> Markup:
    ranks: Sequence[RankArrival] = arrival.ranks
    shown = ranks if len(ranks) <= ROWS else sorted(ranks, key=lambda rank: -rank.lateness_mean)[:LATEST]
    columns = (
        [f"rank {rank.rank}" for rank in shown],
        alike([rank.lateness_mean for rank in shown], seconds_alike),
        alike([rank.lateness_p95 for rank in shown], seconds_alike),
        alike([rank.last_share for rank in shown], shares_alike),
        alike([rank.step_mean for rank in shown], seconds_alike),
    )
    heads = ["rank", "lateness, mean", "lateness, p95", "arrived last", "mean step"]
    if not arrival.is_together:
        heads[1:4] = ["longer per step, mean", "longer per step, p95", "slowest in"]
    more = f"The {LATEST} latest of {len(ranks)} ranks; the data have all of them." if len(shown) < len(ranks) else ""
    return joined([table(heads, list(zip(*columns, strict=True))), paragraphs(more)])


def _heat_rows(arrival: Arrival) -> Iterator[Row]:
    for rank, late in zip(arrival.ranks, arrival.heat, strict=True):
        for step, seconds in zip(arrival.steps, late, strict=True):
            yield (arrival.seed, rank.rank, step, seconds)


@dataclass(frozen=True, kw_only=True)
class ArrivalRow:
    """A rank, or several consecutive ones; times are in seconds."""

    name: str
    mean: float
    p95: float
    note: str = ""
    is_slow: bool = False


@dataclass(frozen=True, kw_only=True)
class ArrivalRows:
    """All rows of one side, and a heat map with as many rows."""

    rows: Sequence[ArrivalRow]
    heat: Heat
    steps: Sequence[int]
    """The first step of each column."""
    longest: float
    """The lateness at which the axis of the bars ends, seconds."""
    darkest: float
    """The lateness of the darkest shade, seconds."""
    is_together: bool = True
    """Whether ranks met; else "late" is how much longer than the fastest they were at work."""


def arrival_chart(lateness: ArrivalRows, *, title: str, width: float, label: str) -> Markup:
    """Draw the bars at the left and the heat map at the right, row by row; one below the other on a narrow page."""
    tall = 30.0 if len(lateness.rows) <= _FINE else 9.0
    names = min(110.0, max(drawing.text_width(row.name) for row in lateness.rows) + 10.0)
    narrow = width < drawing.NARROW
    has_heat = bool(lateness.steps) and any(cell is not None for row in lateness.heat for cell in row)
    right = width if narrow or not has_heat else width * 0.42
    top = 26.0
    foot = top + tall * len(lateness.rows)
    parts = [
        drawing.text(0, 12, title, class_="axis-title"),
        _bars(lateness, names, right, top, tall),
    ]
    height = foot + 42.0
    if has_heat:
        left, above = (names, height + 34.0) if narrow else (right + (30.0 if tall > 20 else 20.0), top)
        measure = "lateness" if lateness.is_together else "longer per step than the fastest"
        parts.append(drawing.text(left, above - 14, f"rank by step: {measure}", class_="axis-title"))
        if narrow:
            parts.append(_names(lateness.rows, names, above, tall))
        parts.append(_cells(lateness, left, width - 1.0, above, tall))
        below = above + tall * len(lateness.rows)
        parts.append(_steps(lateness.steps, left, width - 1.0, below))
        parts.append(_shades(lateness, left, width, below + 30.0))
        height = below + 76.0
    return drawing.svg(width, height, *parts, label=label)


def coarser(heat: Heat, rows: int, columns: int) -> list[list[float | None]]:
    """Return at most `rows` rows and `columns` columns: the latest of ranks that share a row, the mean of columns.

    None stands for unknown values. All rows are equally long.
    """
    length = max((len(row) for row in heat), default=0)
    tall, wide = -(-len(heat) // rows) or 1, -(-length // columns) or 1
    fewer = [[_mean(row[at : at + wide]) for at in range(0, length, wide)] for row in heat]
    return [
        [_latest(column) for column in zip(*fewer[at : at + tall], strict=True)] for at in range(0, len(heat), tall)
    ]


def _mean(cells: Sequence[float | None]) -> float | None:
    values = [cell for cell in cells if cell is not None]
    return sum(values) / len(values) if values else None


def _latest(cells: Sequence[float | None]) -> float | None:
    return max((cell for cell in cells if cell is not None), default=None)


def _bars(lateness: ArrivalRows, left: float, right: float, top: float, tall: float) -> Markup:
    rows = lateness.rows
    room = 64.0 if tall > 20 else 8.0
    foot = top + tall * len(rows)
    values = (lateness.longest, *(row.mean for row in rows), *(row.p95 for row in rows))
    x = scale_of(values, left, right - room, kind="seconds", from_zero=True)
    parts = [drawing.axis_below(x, foot, top, "", most=4), _names(rows, left, top, tall)]
    thick = tall * 0.56
    seconds = seconds_alike(row.mean for row in rows)
    areas: dict[str, list[str]] = {}
    whiskers = []
    for place, row in enumerate(rows):
        y = top + tall * (place + 0.5)
        mean, p95 = max(left + 1.0, x(row.mean)), x(row.p95)
        areas.setdefault("late slow" if row.is_slow else "late", []).append(
            f"M{number(left)} {number(y - thick / 2.0)}H{number(mean)}v{number(thick)}H{number(left)}z"
        )
        whiskers.append(f"M{number(mean)} {number(y)}H{number(p95)}m0 {number(-thick / 3.0)}v{number(thick / 1.5)}")
        if tall > 20:
            hint = f"{row.name}: {seconds_in_words(row.mean)} in the mean, p95 {seconds_in_words(row.p95)} {row.note}"
            content = element("title", hint.strip()), seconds(row.mean)
            parts.append(element("text", *content, x=max(p95, mean) + 6, y=y + 4, class_="small halo"))
    parts += [element("path", d="".join(pieces), class_=kind) for kind, pieces in areas.items()]
    parts.append(element("path", d="".join(whiskers), class_="whisker"))
    return joined(parts)


def _names(rows: Sequence[ArrivalRow], left: float, top: float, tall: float) -> Markup:
    parts = []
    for place, row in enumerate(rows):
        near_slow = any(other.is_slow for other in rows[max(0, place - 1) : place + 2])
        if tall > 20 or row.is_slow or (place % 8 == 0 and not near_slow):
            y = top + tall * (place + 0.5) + 4
            parts.append(
                drawing.text(left - 8, y, row.name, class_="row-name slow" if row.is_slow else "row-name", anchor="end")
            )
    return joined(parts)


def _cells(lateness: ArrivalRows, left: float, right: float, top: float, tall: float) -> Markup:
    """Draw one path of strokes for each shade, in units of cells; neighbours of one shade in a row are one stroke."""
    columns = max(len(row) for row in lateness.heat)
    pieces: dict[str, list[str]] = {}
    ends: dict[str, tuple[int, int]] = {}
    for place, row in enumerate(lateness.heat):
        shades = [_shade(cell, lateness.darkest) for cell in row]
        begin = 0
        for at in range(1, len(shades) + 1):
            if at == len(shades) or shades[at] != shades[begin]:
                x, y = ends.get(shades[begin], (0, 0))
                pieces.setdefault(shades[begin], ["M0 .5"]).append(f"m{begin - x} {place - y}h{at - begin}")
                ends[shades[begin]] = (at, place)
                begin = at
    scale = f"translate({number(left)} {number(top)}) scale({(right - left) / columns:.4f} {number(tall)})"
    strokes = (element("path", d="".join(parts), class_=shade) for shade, parts in sorted(pieces.items()))
    return element("g", *strokes, class_="heat", transform=scale)


def _shade(cell: float | None, greatest: float) -> str:
    if cell is None:
        return "h-none"
    if greatest <= 0.0:
        return "h0"
    return f"h{min(LEVELS, round(LEVELS * cell / greatest))}"


def _steps(steps: Sequence[int], left: float, right: float, y: float) -> Markup:
    wide = (right - left) / len(steps)
    most = max(1, int((right - left) // 64))
    stride = -(-len(steps) // most)
    parts = []
    for place in range(0, len(steps), stride):
        x = left + place * wide
        words = f"step {steps[place]:,}" if place == 0 else f"{steps[place]:,}"
        parts.append(drawing.text(x, y + 16, words, class_="tick"))
        parts.append(drawing.line(x, y, x, y + 4, class_="axis"))
    return joined(parts)


def _shades(lateness: ArrivalRows, left: float, right: float, y: float) -> Markup:
    wide = min(34.0, (right - left) * 0.45 / (LEVELS + 1))
    parts = [drawing.bar(left + wide * level, y, wide, 12, class_=f"h{level}") for level in range(LEVELS + 1)]
    least, most = ("first to arrive", "late") if lateness.is_together else ("the fastest", "longer")
    parts.append(drawing.text(left, y + 27, least, class_="small"))
    words = f"{seconds_in_words(lateness.darkest)} {most}, or more"
    parts.append(drawing.text(left + wide * (LEVELS + 1) + 6, y + 10, words, class_="small"))
    return joined(parts)


TOPIC = Topic(
    name="arrival",
    title="Arrival skew",
    lead=LEAD,
    part=Arrival,
    measure=lambda run: None if run.skew is None else arrival_of(run.skew, run.seed),
    body=_body,
    missing=MISSING,
    markdown=lambda view, arms: by_arm(
        "Slow ranks", arms, lambda arrival: arrival.sentence, "No two workers met, so lateness is unknown."
    ),
    data={
        "arrival": (
            "seed rank lateness_mean lateness_p95 last_share step_mean",
            lambda arrival: (
                (arrival.seed, rank.rank, rank.lateness_mean, rank.lateness_p95, rank.last_share, rank.step_mean)
                for rank in arrival.ranks
            ),
        ),
        "heat": ("seed rank step lateness", _heat_rows),
    },
)
