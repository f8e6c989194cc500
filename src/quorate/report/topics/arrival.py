"""Arrival skew: slow ranks, measured where workers meet, never by step times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from quorate.report.charts import arrivals
from quorate.report.charts.arrivals import COLUMNS, ROWS, ArrivalRows, Heat, arrival_chart, coarser
from quorate.report.charts.markup import Markup, joined
from quorate.report.figures.lateness import Skew
from quorate.report.parts import View, alike, figure, missing, paragraphs, sentence, table
from quorate.report.schema import Part
from quorate.report.slow_ranks import slow_ranks_in_words
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


def rows_of(arrival: Arrival) -> list[arrivals.Row]:
    """Return a row for each rank; of more than `ROWS`, for as many consecutive ranks as needed."""
    together = -(-len(arrival.ranks) // ROWS)
    rows = []
    for first in range(0, len(arrival.ranks), together):
        ranks = arrival.ranks[first : first + together]
        is_slow = any(rank.rank == arrival.slow_rank for rank in ranks)
        name = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{ranks[0].rank}–{ranks[-1].rank}"
        rows.append(
            arrivals.Row(
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
