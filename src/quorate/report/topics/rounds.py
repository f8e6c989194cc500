"""Rounds: contributors of updates, the age of their gradients, and the costs and gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quorate.report.charts import activities, drawing
from quorate.report.charts.columns import Columns, column_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale
from quorate.report.figures.rounds import RoundFigures
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import (
    HALF,
    Alike,
    View,
    figure,
    framed,
    in_words,
    long_table,
    missing,
    nothing,
    paragraphs,
    table,
)
from quorate.report.schema import Estimate, Part
from quorate.report.topic import Arms, Row, Topic, by_arm
from quorate.report.wording import number_in_words, numbers_alike, range_in_words, share_in_words, shares_alike

LEAD = (
    "With a quorum, an update uses the gradients that have arrived. A gradient that arrives too late is added to a "
    "later round; its staleness is the number of rounds that it missed. If every worker waits for every other, every "
    "update has a fresh gradient of every worker, and this section is empty."
)
MEANINGS = (
    "Counts are sums over all seeds, of rounds after the warm-up and before the first worker ended; ranges are 95% "
    "intervals over seeds. A gradient is fresh if it was computed on the newest parameters. The effective batch is "
    "the number of examples in a round. The last column estimates the waiting if all had waited: of the steps of the "
    "same number, those that took less time wait for the longest."
)
EQUAL = "The dashed line is an equal share."
_NAMED = 12
"""The most numbers in the words for readers who do not see a chart."""
_ESTIMATES = ("count", "per_second", "fresh_share", "effective_batch", "waiting_share", "waiting_in_step")
_ROW = 74.0
_THICK = 17.0


class Change(Part):
    """Settings of rounds that changed during the run."""

    seed: int
    number: int
    """The first round under the new settings."""
    settings: dict[str, object]
    """All settings that differ from the start."""
    why: str
    """In words."""


class RoundsSummary(Part):
    """The contributions to updates, under a strategy with a quorum.

    Counts are of all runs that count together, of rounds formed after the warm-up and before the first worker ended;
    estimates are by seed.
    """

    count: Estimate
    """In the whole run."""
    per_second: Estimate | None
    """Rounds per second of training time."""
    contributors: tuple[int, ...]
    """Rounds by the number of contributors: of none, of 1, 2 ..."""
    contributors_mean: float
    live: tuple[int, int]
    """The fewest and the most live workers in a round."""
    fresh_share: Estimate
    """The share of applied gradients that were computed on the newest parameters."""
    staleness: tuple[int, ...]
    """Gradients by staleness: of 0 rounds, of 1, 2 ..."""
    staleness_mean: float
    effective_batch: Estimate | None
    """Mean examples in a round; null if examples were not counted."""
    rank_shares: tuple[float, ...]
    """Shares of the applied gradients, by rank."""
    waiting_share: Estimate | None
    """The share of the time of steps that was waiting for others."""
    waiting_in_step: Estimate | None
    """That share had everybody waited for everybody in every step: an estimate from the times at work."""
    changes: tuple[Change, ...] = ()
    """Run by run, in order."""


def _of_run(run: MeasuredRun) -> tuple[RoundFigures, list[Change]] | None:
    if run.rounds is None:
        return None
    changes = [
        Change(seed=run.seed, number=change.number + 1, settings=dict(change.settings or {}), why=change.why)
        for change in run.rounds.changed
    ]
    return run.rounds, changes


def _summarized(figures: Sequence[tuple[RoundFigures, list[Change]]]) -> RoundsSummary:
    runs = [run for run, _ in figures]
    contributors = sum((run.contributors for run in runs), Counter[int]())
    staleness = sum((run.staleness for run in runs), Counter[int]())
    ranks = sum((run.ranks for run in runs), Counter[int]())
    return RoundsSummary(
        count=Estimate.of([run.count for run in runs]),
        per_second=Estimate.of_known(run.per_second for run in runs),
        contributors=_listed(contributors),
        contributors_mean=_centre(contributors),
        live=(min(run.live[0] for run in runs), max(run.live[1] for run in runs)),
        fresh_share=Estimate.of([run.fresh_share for run in runs], most=1.0),
        staleness=_listed(staleness),
        staleness_mean=_centre(staleness),
        effective_batch=Estimate.of_known(run.effective_batch for run in runs),
        rank_shares=tuple(count / ranks.total() for count in _listed(ranks, max(run.size for run in runs))),
        waiting_share=Estimate.of_known((run.waiting for run in runs), most=1.0),
        waiting_in_step=Estimate.of_known((run.waiting_in_step for run in runs), most=1.0),
        changes=tuple(change for _, changes in figures for change in changes),
    )


def _listed(counts: Counter[int], size: int = 0) -> tuple[int, ...]:
    """Return the counts by number, from 0 on; at least `size` of them."""
    return tuple(counts[number] for number in range(max(size, max(counts) + 1)))


def _centre(counts: Counter[int]) -> float:
    return sum(number * count for number, count in counts.items()) / counts.total()


def _body(view: View, arms: Arms[RoundsSummary]) -> Iterator[Markup]:
    yield _table(view, arms)
    yield _changes(view, arms)
    yield element("div", *_counts(view, arms), _gains(view, arms), class_="figures")
    yield missing(view.left_out([arm.name for arm, _ in arms], "no rounds were recorded"))


def _table(view: View, arms: Arms[RoundsSummary]) -> Markup:
    heads = ["strategy", "rounds", "rounds/s", "workers in each", "fresh gradients", "staleness",
             "effective batch", "time waiting", "waiting, if all had waited"]  # fmt: skip
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
    return framed(view, "Costs and gains of the quorum", table(heads, rows), paragraphs(MEANINGS))


def _changes(view: View, arms: Arms[RoundsSummary]) -> Markup:
    rows = [
        [arm.name, str(change.seed), f"{change.number:,}", _settings(change.settings), change.why]
        for arm, summary in arms
        for change in summary.changes
    ]
    heads = ["strategy", "seed", "from round", "settings", "because"]
    return framed(view, "Changes of settings", long_table(heads, rows)) if rows else Markup()


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


def _counts(view: View, arms: Arms[RoundsSummary]) -> Iterator[Markup]:
    yield _figure(
        view, arms, "Staleness of gradients",
        lambda rounds: (rounds.staleness, f"{share_in_words(rounds.fresh_share.mean)} fresh"),
        title="rounds missed before it was applied", counted="Gradients by staleness in rounds",
    )  # fmt: skip
    workers = view.summary.workers
    yield _figure(
        view, arms, "Workers in a round",
        lambda rounds: (rounds.contributors[1:],
                        f"mean {number_in_words(rounds.contributors_mean)} of {min(workers, rounds.live[1])}"),
        title="workers with a gradient in the round", counted="Rounds by the number of workers in them", first=1,
        most=workers,
    )  # fmt: skip
    yield _figure(
        view, arms, "Applied gradients by rank",
        lambda rounds: (rounds.rank_shares, "least: rank {}, {}".format(*_least(rounds))),
        title="rank", counted="Shares of the applied gradients by rank", note=EQUAL, is_level=True,
    )  # fmt: skip


def _least(rounds: RoundsSummary) -> tuple[int, str]:
    """Return the rank with the least of the applied gradients, and its share in words."""
    rank = min(range(len(rounds.rank_shares)), key=lambda rank: rounds.rank_shares[rank])
    return rank, share_in_words(rounds.rank_shares[rank])


def _gains(view: View, arms: Arms[RoundsSummary]) -> Markup:
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
    was, would_be = "measured", "if all had waited"
    ends = " ".join(
        f"{row.name}: {was} {share_in_words(row.was)}, {would_be} {share_in_words(row.would_be)}." for row in rows
    )
    return figure(
        view, "Share of time spent waiting",
        lambda width: gain_chart(rows, was=was, would_be=would_be, width=width, label=f"Bars of waiting. {ends}"),
        note="Empty bars are estimates; see above.", wide=HALF,
    )  # fmt: skip


def _figure(
    view: View,
    arms: Arms[RoundsSummary],
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
    return figure(
        view, caption,
        lambda width: column_chart(rows, title=title, width=width, label=label, first=first),
        note=note, numbers=long_table(["strategy", title, "share"], numbers), wide=HALF,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One side; shares of the time."""

    name: str
    look: int
    was: float
    would_be: float


def gain_chart(rows: Sequence[Gain], *, was: str, would_be: str, width: float, label: str) -> Markup:
    """Draw bars on one scale: full ones, named `was`, and empty ones below them, named `would_be`."""
    greatest = max(max(row.was, row.would_be) for row in rows) or 1.0
    room = max(drawing.text_width(f"{words} 100%", 12.0) for words in (was, would_be)) + 12.0
    x = Scale(0.0, greatest, 1.0, max(40.0, width - room))
    shares = shares_alike(share for row in rows for share in (row.was, row.would_be))
    parts = []
    for place, row in enumerate(rows):
        y = _ROW * place + 14.0
        name = drawing.text(1, y, drawing.shortened(row.name, width, 13), class_="name halo")
        parts.append(drawing.group(name, class_=drawing.colour_of(row.look)))
        bars = ((was, row.was, f"area {activities.class_of('waiting')}"), (would_be, row.would_be, "estimate"))
        for line, (words, share, kind) in enumerate(bars):
            top = y + 8.0 + (_THICK + 3.0) * line
            said = f"{words} {shares(share)}"
            parts.append(drawing.bar(1, top, max(1.0, x(share) - 1.0), _THICK, class_=kind, hint=f"{row.name}: {said}"))
            parts.append(drawing.text(x(share) + 7.0, top + 13.0, said, class_="small"))
    bottom = _ROW * len(rows)
    parts.append(drawing.line(1, 18.0, 1, bottom - 6.0, class_="axis"))
    return drawing.svg(width, bottom, joined(parts), label=label)


def _in_words(rounds: RoundsSummary) -> str:
    speed = "" if rounds.per_second is None else f" ({number_in_words(rounds.per_second.mean)} per second)"
    rank, share = _least(rounds)
    said = [
        f"{number_in_words(rounds.count.mean)} rounds{speed}, {number_in_words(rounds.contributors_mean)} of "
        f"{range_in_words(*rounds.live)} workers in each",
        f"{share_in_words(rounds.fresh_share.mean)} of the gradients fresh, staleness "
        f"{number_in_words(rounds.staleness_mean)} on average and at most {len(rounds.staleness) - 1}",
        f"rank {rank} has the smallest share of the applied gradients, {share}",
    ]
    if rounds.effective_batch is not None:
        said.append(f"effective batch {number_in_words(rounds.effective_batch.mean)}")
    if rounds.waiting_share is not None and rounds.waiting_in_step is not None:
        waited, in_step = (share_in_words(share.mean) for share in (rounds.waiting_share, rounds.waiting_in_step))
        said.append(f"{waited} of the time was waiting, {in_step} if all had waited")
    return "; ".join(said)


def _estimate_rows(rounds: RoundsSummary) -> Iterator[Row]:
    for name in _ESTIMATES:
        estimate: Estimate | None = getattr(rounds, name)
        if estimate is not None:
            yield (name, estimate.mean, estimate.low, estimate.high)


TOPIC = Topic(
    name="rounds",
    title="Rounds",
    lead=LEAD,
    part=RoundsSummary,
    measure=_of_run,
    summarize=_summarized,
    body=_body,
    markdown=lambda view, arms: by_arm("Rounds", arms, _in_words),
    data={
        "rounds": ("figure mean low high", _estimate_rows),
        "staleness": ("staleness gradients", lambda rounds: enumerate(rounds.staleness)),
        "contributors": ("workers rounds", lambda rounds: enumerate(rounds.contributors)),
        "rank_shares": ("rank share", lambda rounds: enumerate(rounds.rank_shares)),
    },
)
