"""Rounds: contributors of updates, the age of their gradients, and the costs and gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from quorate.report.charts.columns import Columns, column_chart
from quorate.report.charts.gains import Gain, gain_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page.parts import (
    HALF,
    Alike,
    View,
    figure,
    framed,
    in_words,
    missing,
    nothing,
    paragraphs,
    section,
    table,
)
from quorate.report.schema import ArmSummary, Estimate, RoundsSummary
from quorate.report.wording import number_in_words, numbers_alike, range_in_words, share_in_words, shares_alike

LEAD = (
    "Under a quorum an update takes in the gradients that are there. One that comes too late is added to a later "
    "round; its staleness is the number of rounds it missed. Where everybody waits for everybody, every update has a "
    "fresh gradient of every worker, and there is nothing to show."
)
MEANINGS = (
    "Counts of all seeds together, of the rounds that were formed after the warm-up and before the first worker ended; "
    "ranges are 95% intervals over seeds. Fresh is what was computed on the newest parameters there were. The "
    "effective batch is the examples in a round. The last column estimates what waiting would have been had everybody "
    "waited for everybody: steps of equal number are held side by side, and who was at work for less than the longest "
    "waits for the rest."
)
EQUAL = "The dashed line is an equal share."
Arms = Sequence[tuple[ArmSummary, RoundsSummary]]
LISTED = 200
"""The most rows of the numbers below a chart; all are in the data."""
_NAMED = 12
"""The most numbers in the words for readers who do not see a chart."""


def rounds(view: View) -> Markup:
    """Return section 6 of the page, if some arm has rounds."""
    arms = [(arm, arm.rounds) for arm in view.summary.arms if arm.rounds is not None]
    if not arms:
        return Markup()
    absent = view.left_out(
        (arm for arm in view.summary.arms if arm.rounds is None), "no rounds with a quorum are known"
    )
    charts = (_staleness(view, arms), _contributors(view, arms), _ranks(view, arms), _gains(view, arms))
    grid = element("div", *charts, class_="figures")
    return section("rounds", "Rounds", LEAD, _table(view, arms), _changes(view, arms), grid, missing(absent))


def _table(view: View, arms: Arms) -> Markup:
    heads = ["strategy", "rounds", "rounds/s", "workers in each", "fresh gradients", "staleness",
             "effective batch", "time waiting", "waiting, if in step"]  # fmt: skip
    summaries = [summary for _, summary in arms]
    members = numbers_alike(summary.contributors_mean for summary in summaries)
    stale = numbers_alike(summary.staleness_mean for summary in summaries)
    columns = [
        [arm.name for arm, _ in arms],
        _cells([summary.count for summary in summaries], numbers_alike),
        _cells([summary.per_second for summary in summaries], numbers_alike),
        [_small(members(summary.contributors_mean), f"of {range_in_words(*summary.live)}") for summary in summaries],
        _cells([summary.fresh_share for summary in summaries], shares_alike),
        [_small(stale(summary.staleness_mean), f"at most {len(summary.staleness) - 1}") for summary in summaries],
        _cells([summary.effective_batch for summary in summaries], numbers_alike),
        _cells([summary.waiting_share for summary in summaries], shares_alike),
        _cells([summary.waiting_in_step for summary in summaries], shares_alike),
    ]
    rows = list(zip(*columns, strict=True))
    return framed(view, "What the quorum cost and gained", table(heads, rows), paragraphs(MEANINGS))


def _changes(view: View, arms: Arms) -> Markup:
    rows = [
        [arm.name, str(change.seed), f"{change.number:,}", _settings(change.settings), change.why]
        for arm, summary in arms
        for change in summary.changes
    ]
    if not rows:
        return Markup()
    more = f"The first {LISTED} of {len(rows):,} rows; all of them are in the data." if len(rows) > LISTED else ""
    heads = ["strategy", "seed", "from round", "settings", "because"]
    return framed(view, "What was changed on the way", table(heads, rows[:LISTED]), paragraphs(more))


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {in_words(value)}" for name, value in settings.items())


def _cells(estimates: Sequence[Estimate | None], form: Alike) -> Sequence[str]:
    words = form([None if estimate is None else estimate.mean for estimate in estimates])
    return [_cell(estimate, words) for estimate in estimates]


def _cell(estimate: Estimate | None, words: Callable[[float], str]) -> Markup:
    if estimate is None:
        return nothing()
    spread = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = words(estimate.low), words(estimate.high)
        spread = "" if low == high else f"{low} – {high}"
    return _small(words(estimate.mean), spread, repr(estimate.mean))


def _small(words: str, more: str, value: str | None = None) -> Markup:
    below = [element("span", more, class_="interval")] if more else []
    return element("span", element("span", words, class_="mean", data_value=value), *below)


def _staleness(view: View, arms: Arms) -> Markup:
    return _figure(
        view, arms, "How stale gradients were",
        lambda summary: (summary.staleness, f"{share_in_words(summary.fresh_share.mean)} fresh"),
        title="rounds that had gone by when it was applied", counted="Gradients by staleness in rounds",
    )  # fmt: skip


def _contributors(view: View, arms: Arms) -> Markup:
    return _figure(
        view, arms, "How many workers were in a round",
        lambda summary: (
            summary.contributors[1:], f"mean {number_in_words(summary.contributors_mean)} of {view.summary.workers}",
        ),
        title="workers whose gradients were in it", counted="Rounds by the number of workers in them", first=1,
        most=view.summary.workers,
    )  # fmt: skip


def _ranks(view: View, arms: Arms) -> Markup:
    def of(summary: RoundsSummary) -> tuple[Sequence[float], str]:
        least = min(range(len(summary.rank_shares)), key=lambda rank: summary.rank_shares[rank])
        return summary.rank_shares, f"least: rank {least}, {share_in_words(summary.rank_shares[least])}"

    return _figure(
        view, arms, "Whose gradients were applied", of,
        title="rank", counted="Shares of the applied gradients by rank", note=EQUAL, is_level=True,
    )  # fmt: skip


def _gains(view: View, arms: Arms) -> Markup:
    """Return the chart of saved waiting; nothing if nobody could wait, or everybody was waited for anyway."""
    rows = [
        Gain(
            name=arm.name,
            look=view.looks[arm.name],
            was=summary.waiting_share.mean,
            would_be=summary.waiting_in_step.mean,
        )
        for arm, summary in arms
        if summary.waiting_share is not None and summary.waiting_in_step is not None
    ]
    if not rows:
        return Markup()
    was, would_be = "was", "in step it would be"
    ends = " ".join(
        f"{row.name}: {was} {share_in_words(row.was)}, {would_be} {share_in_words(row.would_be)}." for row in rows
    )
    return figure(
        view, "Share of the time that was waiting",
        lambda width: gain_chart(rows, was=was, would_be=would_be, width=width, label=f"Bars of waiting. {ends}"),
        note="Empty bars are an estimate; see above.", wide=HALF,
    )  # fmt: skip


def _figure(
    view: View,
    arms: Arms,
    caption: str,
    of: Callable[[RoundsSummary], tuple[Sequence[float], str]],
    *,
    title: str,
    counted: str,
    first: int = 0,
    most: int = 0,
    note: str = "",
    is_level: bool = False,
) -> Markup:
    """Draw columns of every arm; `of` returns the counts from `first` on, and words for the arm."""
    rows, descriptions, numbers = [], [], []
    for arm, summary in arms:
        counts, words = of(summary)
        counts = [*counts, *([0] * (most - len(counts)))]
        level = 1.0 / len(counts) if is_level else None
        rows.append(Columns(name=arm.name, look=view.looks[arm.name], counts=counts, note=words, level=level))
        total = sum(counts)
        places = sorted(range(len(counts)), key=lambda at: -counts[at])[:_NAMED]
        listed = ", ".join(f"{at + first}: {share_in_words(counts[at] / total)}" for at in sorted(places))
        descriptions.append(f"{arm.name}, {words}; {listed}.")
        numbers += [
            [arm.name, f"{at + first:,}", share_in_words(count / total)] for at, count in enumerate(counts) if count
        ]
    label = f"{counted}. {' '.join(descriptions)}"
    more = f"The first {LISTED} of {len(numbers):,} rows; all of them are in the data." if len(numbers) > LISTED else ""
    return figure(
        view, caption,
        lambda width: column_chart(rows, title=title, width=width, label=label, first=first),
        note=note, numbers=joined([table(["strategy", title, "share"], numbers[:LISTED]), paragraphs(more)]), wide=HALF,
    )  # fmt: skip
