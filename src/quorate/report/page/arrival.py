"""Arrival skew: slow ranks, measured where workers meet, never by step times."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.report.charts.arrivals import COLUMNS, ROWS, Heat, Lateness, Row, arrival_chart, coarser
from quorate.report.charts.markup import Markup, joined
from quorate.report.page.parts import View, alike, figure, missing, paragraphs, section, sentence, table
from quorate.report.schema import Arrival, RankArrival
from quorate.report.wording import seconds_alike, seconds_in_words, share_in_words, shares_alike

LEAD = (
    "Lateness is the time after the first rank came to the meeting point. Where everybody waits for everybody, all "
    "ranks have the same step time; only this shows who is slow."
)
APART = (
    "Not everybody waited for everybody here, so nobody came late to anything. Shown is how much longer each rank was "
    "at work on its step than the fastest rank on its step of equal number: what it would have been late by, had all "
    "begun each step together."
)
MANY_ARMS = 4
"""With more arms than this, heat maps are coarser, so that the page stays small."""
LATEST = 16
"""Ranks in the table, if there are more than rows in the chart."""
_NAMED = 8
"""The most ranks in the words for readers who do not see the chart."""


def arrival(view: View) -> Markup:
    """Section 5 of the page."""
    arrivals = [(arm.name, arm.arrival) for arm in view.summary.arms if arm.arrival is not None and arm.arrival.ranks]
    if not arrivals:
        why = "No arm has a run that ended well with two ranks or more, so nobody's lateness is known."
        return section("arrival", "Arrival skew", LEAD, missing(why))
    absent = view.left_out((arm for arm in view.summary.arms if arm.arrival is None), "no arrivals are known")
    columns = COLUMNS if len(arrivals) <= MANY_ARMS else COLUMNS // 3
    heats = [coarser(arrival.heat, ROWS, columns) for _, arrival in arrivals]
    longest = max(rank.lateness_p95 for _, arrival in arrivals for rank in arrival.ranks)
    darkest = max(_late(heat) for heat in heats)
    shown = [_arm(view, *pair, heat, longest, darkest) for pair, heat in zip(arrivals, heats, strict=True)]
    scale = paragraphs("All arms are on one scale." if len(arrivals) > 1 else "")
    return section("arrival", "Arrival skew", LEAD, *shown, scale, missing(absent))


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
    lateness = Lateness(
        rows=rows, heat=heat, steps=steps, longest=longest, darkest=darkest, is_together=arrival.is_together
    )
    chart = f"Bars of lateness by rank, and a heat map of rank by step, for {name}."
    explained = "" if arrival.is_together else f"{APART} "
    label = f"{chart} {explained}{sentence(arrival.sentence)} {_in_words(arrival)}"
    title = view.time(f"{'lateness' if arrival.is_together else 'longer at work'}; bar: mean, line: to p95")
    note = f"{explained}Seed {arrival.seed}."
    if len(rows) < len(arrival.ranks):
        note += " A row is several ranks: the latest of them."
    return figure(
        view, name, lambda width: arrival_chart(lateness, title=title, width=width, label=label),
        finding=arrival.sentence, note=note, numbers=_numbers(arrival),
    )  # fmt: skip


def rows_of(arrival: Arrival) -> list[Row]:
    """Return a row for each rank; of more than `ROWS`, for as many consecutive ranks as needed."""
    together = -(-len(arrival.ranks) // ROWS)
    rows = []
    for first in range(0, len(arrival.ranks), together):
        ranks = arrival.ranks[first : first + together]
        is_slow = any(rank.rank == arrival.slow_rank for rank in ranks)
        name = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{ranks[0].rank}–{ranks[-1].rank}"
        rows.append(
            Row(
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
        f"Rank {rank.rank}: {seconds_in_words(rank.lateness_mean)} in the mean, "
        f"p95 {seconds_in_words(rank.lateness_p95)}, {_last(arrival)} in {share_in_words(rank.last_share)}."
        for rank in latest
    )


def _last(arrival: Arrival) -> str:
    return "last" if arrival.is_together else "longest"


def _numbers(arrival: Arrival) -> Markup:
    ranks: Sequence[RankArrival] = arrival.ranks
    shown = ranks if len(ranks) <= ROWS else sorted(ranks, key=lambda rank: -rank.lateness_mean)[:LATEST]
    values = [[rank.lateness_mean, rank.lateness_p95, rank.last_share, rank.step_mean] for rank in shown]
    words = alike(values, [seconds_alike, seconds_alike, shares_alike, seconds_alike])
    rows = [[f"rank {rank.rank}", *row] for rank, row in zip(shown, words, strict=True)]
    heads = ["rank", "lateness, mean", "lateness, p95", "came last", "its mean step"]
    if not arrival.is_together:
        heads[1:4] = ["longer at work, mean", "longer at work, p95", "was longest"]
    more = f"The {LATEST} latest of {len(ranks)} ranks; all of them are in the data." if len(shown) < len(ranks) else ""
    return joined([table(heads, rows), paragraphs(more)])
