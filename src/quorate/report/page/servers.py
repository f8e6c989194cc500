"""Servers: the staleness of gradients, which of them were dropped or scaled, and the load of each server."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.report.charts.columns import Columns, column_chart
from quorate.report.charts.loads import Load, load_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page.parts import HALF, View, alike, figure, framed, nothing, paragraphs, section, table
from quorate.report.page.rounds import LISTED
from quorate.report.schema import ArmSummary, ServersSummary
from quorate.report.wording import bytes_in_words, number_in_words, numbers_alike, share_in_words, shares_alike

LEAD = (
    "Parameters lie on servers, which step as gradients come. The staleness of a gradient is the number of steps that "
    "they had made since the parameters that it is of."
)
MEANINGS = (
    "Counts of all seeds together, over the whole run. What a gradient counts is in equal shares: 1 is what each "
    "counts in a step of all workers; one that is dropped counts nothing. Under staleness_scaling=gap numbers are "
    "scaled one by one, which is not in it."
)
SERVERS = 16
"""The most servers drawn of each arm."""
_NAMED = 12
Arms = Sequence[tuple[ArmSummary, ServersSummary]]


def servers(view: View) -> Markup:
    """Return the section, if some arm has servers."""
    arms = [(arm, arm.servers) for arm in view.summary.arms if arm.servers is not None]
    if not arms:
        return Markup()
    charts = element("div", _staleness(view, arms), _loads(view, arms), class_="figures")
    return section("servers", "Servers", LEAD, _table(view, arms), charts)


def _table(view: View, arms: Arms) -> Markup:
    heads = ["strategy", "steps", "gradients", "mean staleness", "dropped", "scaled down", "a gradient counts",
             "most dropped"]  # fmt: skip
    figures = alike(
        [
            [summary.staleness_mean, summary.dropped_share, summary.scaled_share, _counts(summary)]
            for _, summary in arms
        ],
        [numbers_alike, shares_alike, shares_alike, numbers_alike],
    )
    rows = [
        [arm.name, f"{summary.steps:,}", f"{summary.gradients:,}", *row, _most_dropped(summary)]
        for (arm, summary), row in zip(arms, figures, strict=True)
    ]
    return framed(view, "What became of gradients", table(heads, rows), paragraphs(MEANINGS))


def _counts(summary: ServersSummary) -> float:
    return (
        sum(count * weight for count, weight in zip(summary.staleness, summary.weights, strict=True))
        / summary.gradients
    )


def _most_dropped(summary: ServersSummary) -> str:
    rank, taken, dropped = max(summary.ranks, key=lambda counts: counts[2], default=(0, 0, 0))
    return f"rank {rank}, {share_in_words(dropped / (taken + dropped))} of its own" if dropped else nothing("none")


def _staleness(view: View, arms: Arms) -> Markup:
    title = "steps that had been made since"
    rows, lines, numbers = [], [], []
    for arm, summary in arms:
        total = sum(summary.staleness)
        note = f"mean {number_in_words(summary.staleness_mean)}, at most {len(summary.staleness) - 1:,}"
        rows.append(Columns(name=arm.name, look=view.looks[arm.name], counts=summary.staleness, note=note))
        ages = sorted(range(len(summary.staleness)), key=lambda age: -summary.staleness[age])[:_NAMED]
        lines.append(
            f"{arm.name}, {note}: "
            + ", ".join(f"{n} {share_in_words(summary.staleness[n] / total)}" for n in sorted(ages))
        )
        numbers += [
            [arm.name, f"{age:,}", share_in_words(count / total), number_in_words(weight)]
            for age, (count, weight) in enumerate(zip(summary.staleness, summary.weights, strict=True))
            if count
        ]
    more = f"The first {LISTED} of {len(numbers):,} rows; all of them are in the data." if len(numbers) > LISTED else ""
    listed = table(["strategy", "staleness", "share", "each counts"], numbers[:LISTED])
    return figure(
        view, "How stale gradients were",
        lambda width: column_chart(
            rows, title=title, width=width, label=f"Gradients by staleness in steps. {'. '.join(lines)}."
        ),
        numbers=joined([listed, paragraphs(more)]), wide=HALF,
    )  # fmt: skip


def _loads(view: View, arms: Arms) -> Markup:
    rows, lines = [], []
    for arm, summary in arms:
        for server in summary.servers[:SERVERS]:
            sent = f"in {bytes_in_words(server.bytes_in)}/s, out {bytes_in_words(server.bytes_out)}/s"
            busy = "" if server.busy_share is None else f"{share_in_words(server.busy_share)} busy, "
            rows.append(Load(name=arm.name, look=view.looks[arm.name], row=f"rank {server.rank}",
                             share=server.busy_share, words=f"{busy}{sent}"))  # fmt: skip
            lines.append(f"{arm.name}, rank {server.rank}: {busy}{sent}.")
    hidden = sum(max(0, len(summary.servers) - SERVERS) for _, summary in arms)
    note = f"Further servers: {hidden:,}; all of them are in the data. " if hidden else ""
    if view.is_virtual:
        note += "How busy servers were is not told: in virtual time they handle messages at once. "
    return figure(
        view, "Load of each server",
        lambda width: load_chart(rows, title="share of the time busy", width=width, label=f"Loads. {' '.join(lines)}"),
        note=f"{note}Bytes are those of other workers.", wide=HALF,
    )  # fmt: skip
