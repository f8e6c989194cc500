"""Exclusions: the ranks whose gradients rules and codes did not count, with reasons and times."""

from __future__ import annotations

from collections.abc import Iterator

from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, arms_table, figure, framed, paragraphs
from quorate.report.reading.run import left_out_of
from quorate.report.schema import ArmSummary, Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.topics.merges import LANES, MergeDots, merge_chart
from quorate.report.wording import seconds_alike, share_in_words, shares_alike

LEAD = (
    "An aggregation rule computes a mean of gradients of which some may be wrong; a code computes the mean of those "
    "that are correct. This section lists the gradients that were left out or had hardly any weight, by the worker "
    "that sent them."
)
MEANINGS = (
    "Not finite: the gradient had infinities or NaN. Outvoted: most of its group sent a different one, or it violates "
    "the code. No weight: the rule chose others, as Krum does with all but a few. Far: it was more than three times as "
    "far from the others as they are from each other; a rule for coordinates trims most of it. Absurd: its norm is out "
    "of all proportion to the others. A worker that is listed for nearly every mean is faulty; one that is listed "
    "occasionally need not be."
)
SHOWN = 200


class Exclusion(Part):
    """The exclusions of a rank's gradients for one reason."""

    rank: int
    why: str
    """`not finite`, `outvoted`, `no weight`, `far`, or `absurd`."""
    count: int
    """The number of sums."""
    share: float
    """The share of all sums of the run."""
    first: float
    """The time of the first record, in seconds of training time."""
    last: float
    times: tuple[float, ...]
    """Times of records; at most 200, evenly chosen."""


class ExclusionsSummary(Part):
    """Gradients that rules, codes, or the watch over ordinary means left out.

    They are of the first run of an arm that ended well and has any.
    """

    seed: int
    sums: int
    """Means of all workers that the run formed."""
    ranks: tuple[Exclusion, ...]
    """By rank."""


def exclusions_of(run: MeasuredRun) -> ExclusionsSummary | None:
    """Return the exclusions that the first ranks in turn have recorded; None without exclusions."""
    exclusions, sums = left_out_of(run.records)
    if not exclusions or not run.records.has_steps:
        return None
    ranks = [
        Exclusion(
            rank=exclusion.rank,
            why=exclusion.why,
            count=exclusion.count,
            share=exclusion.count / sums,
            first=exclusion.times[0],
            last=exclusion.times[-1],
            times=tuple(exclusion.times[:: -(-len(exclusion.times) // SHOWN)]),
        )
        for exclusion in exclusions
    ]
    return ExclusionsSummary(seed=run.seed, sums=sums, ranks=tuple(ranks))


def _body(view: View, arms: Arms[ExclusionsSummary]) -> Iterator[Markup]:
    yield framed(
        view,
        "Excluded gradients",
        arms_table([(arm, row) for arm, summary in arms for row in summary.ranks], _COLUMNS),
        paragraphs(MEANINGS),
    )
    for arm, summary in arms:
        if sum(len(row.times) for row in summary.ranks) > 1:
            yield _chart(view, arm, summary)


def _chart(view: View, arm: ArmSummary, summary: ExclusionsSummary) -> Markup:
    lanes = {rank: lane for lane, rank in enumerate(sorted({row.rank for row in summary.ranks})[:LANES])}
    points = [(time, lanes[row.rank], row.share) for row in summary.ranks if row.rank in lanes for time in row.times]
    dots = [MergeDots(time, [(lane, share, False)]) for time, lane, share in sorted(points)]
    most = sorted(summary.ranks, key=lambda row: -row.count)[:5]
    words = ", ".join(f"rank {row.rank} {row.why} in {share_in_words(row.share)}" for row in most)
    return figure(
        view,
        f"Excluded from {arm.name}",
        lambda width: merge_chart(
            [f"rank {rank}" for rank in lanes],
            dots,
            title="training time",
            width=width,
            label=f"Times at which gradients were excluded from means of {arm.name}. Share of all means: {words}.",
        ),
        note=f"Seed {summary.seed}. Each dot is up to ten means; a larger dot is a more frequent exclusion.",
    )


_COLUMNS: TableColumns[Exclusion] = (
    ("rank", lambda row: f"rank {row.rank}", None),
    ("why", lambda row: row.why, None),
    ("means", lambda row: f"{row.count:,}", None),
    ("share of all", lambda row: row.share, shares_alike),
    ("first at", lambda row: row.first, seconds_alike),
    ("last at", lambda row: row.last, seconds_alike),
)
TOPIC = Topic(
    name="exclusions",
    title="Excluded gradients",
    lead=LEAD,
    part=ExclusionsSummary,
    measure=exclusions_of,
    body=_body,
    data={"exclusions": data_of("rank why count share first last", lambda summary: summary.ranks)},
)
