"""Arrival skew: who is slow, measured where workers meet, never by step times."""

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
"""More arms than this have coarser heat maps, so that the page stays small."""
LATEST = 16
"""Ranks in the table, where there are more of them than rows in the chart."""
_NAMED = 8
"""Ranks in the words for those who do not see the chart, at most."""


def arrival(view: View) -> Markup:
    """Section 5 of the page."""
    known = [(arm.name, arm.arrival) for arm in view.summary.arms if arm.arrival is not None and arm.arrival.ranks]
    if not known:
        why = "No arm has a run that ended well with two ranks or more, so nobody's lateness is known."
        return section("arrival", "Arrival skew", LEAD, missing(why))
    absent = view.left_out((arm for arm in view.summary.arms if arm.arrival is None), "no arrivals are known")
    columns = COLUMNS if len(known) <= MANY_ARMS else COLUMNS // 3
    heats = [coarser(one.heat, ROWS, columns) for _, one in known]
    longest = max(rank.lateness_p95 for _, one in known for rank in one.ranks)
    darkest = max(_late(heat) for heat in heats)
    shown = [_one(view, *one, heat, longest, darkest) for one, heat in zip(known, heats, strict=True)]
    scale = paragraphs("All arms are on one scale." if len(known) > 1 else "")
    return section("arrival", "Arrival skew", LEAD, *shown, scale, missing(absent))


def _late(heat: Heat) -> float:
    """How late is very late: but for one in fifty columns, nobody is later. One halt must not leave all others pale."""
    columns = zip(*heat, strict=True)
    latest = sorted(max(known) for column in columns if (known := [cell for cell in column if cell is not None]))
    return latest[min(len(latest) - 1, int(0.98 * len(latest)))] if latest else 0.0


def _one(view: View, name: str, arrival: Arrival, heat: Heat, longest: float, darkest: float) -> Markup:
    rows = rows_of(arrival)
    columns = max((len(row) for row in heat), default=0)
    wide = -(-len(arrival.steps) // columns) if columns else 1
    steps = arrival.steps[::wide][:columns]
    lateness = Lateness(
        rows=rows, heat=heat, steps=steps, longest=longest, darkest=darkest, is_together=arrival.is_together
    )
    what = f"Bars of lateness by rank, and a heat map of rank by step, for {name}."
    meant = "" if arrival.is_together else f"{APART} "
    label = f"{what} {meant}{sentence(arrival.sentence)} {_told(arrival)}"
    title = view.time(f"{'lateness' if arrival.is_together else 'longer at work'}; bar: mean, line: to p95")
    note = f"{meant}Seed {arrival.seed}."
    if len(rows) < len(arrival.ranks):
        note += " A row is several ranks: the latest of them."
    return figure(
        view, name, lambda width: arrival_chart(lateness, title=title, width=width, label=label),
        finding=arrival.sentence, note=note, numbers=_numbers(arrival),
    )  # fmt: skip


def rows_of(arrival: Arrival) -> list[Row]:
    """A row for each rank; where there are more than `ROWS` of them, for as many that follow each other as needed."""
    together = -(-len(arrival.ranks) // ROWS)
    rows = []
    for first in range(0, len(arrival.ranks), together):
        ranks = arrival.ranks[first : first + together]
        is_slow = any(one.rank == arrival.slow_rank for one in ranks)
        name = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{ranks[0].rank}–{ranks[-1].rank}"
        rows.append(
            Row(
                name=f"{name} ({'' if len(ranks) == 1 else f'{arrival.slow_rank} '}slow)" if is_slow else name,
                mean=max(one.lateness_mean for one in ranks),
                p95=max(one.lateness_p95 for one in ranks),
                note=f"{_last(arrival)} in {share_in_words(ranks[0].last_share)} of the steps"
                if len(ranks) == 1
                else "",
                is_slow=is_slow,
            )
        )
    return rows


def _told(arrival: Arrival) -> str:
    """The latest ranks in words."""
    latest = sorted(arrival.ranks, key=lambda one: -one.lateness_mean)[:_NAMED]
    return " ".join(
        f"Rank {one.rank}: {seconds_in_words(one.lateness_mean)} in the mean, "
        f"p95 {seconds_in_words(one.lateness_p95)}, {_last(arrival)} in {share_in_words(one.last_share)}."
        for one in latest
    )


def _last(arrival: Arrival) -> str:
    return "last" if arrival.is_together else "longest"


def _numbers(arrival: Arrival) -> Markup:
    """A row for each rank; of very many, for the latest ones."""
    ranks: Sequence[RankArrival] = arrival.ranks
    shown = ranks if len(ranks) <= ROWS else sorted(ranks, key=lambda one: -one.lateness_mean)[:LATEST]
    values = [[one.lateness_mean, one.lateness_p95, one.last_share, one.step_mean] for one in shown]
    words = alike(values, [seconds_alike, seconds_alike, shares_alike, seconds_alike])
    rows = [[f"rank {one.rank}", *row] for one, row in zip(shown, words, strict=True)]
    heads = ["rank", "lateness, mean", "lateness, p95", "came last", "its mean step"]
    if not arrival.is_together:
        heads[1:4] = ["longer at work, mean", "longer at work, p95", "was longest"]
    rest = f"The {LATEST} latest of {len(ranks)} ranks; all of them are in the data." if len(shown) < len(ranks) else ""
    return joined([table(heads, rows), paragraphs(rest)])
