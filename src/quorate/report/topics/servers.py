"""Servers: the staleness of gradients, which of them were dropped or scaled, and the load of each server."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quorate.records.rows import Served
from quorate.report.charts import drawing
from quorate.report.charts.columns import Columns, column_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale
from quorate.report.parts import (
    HALF,
    TableColumns,
    View,
    arms_table,
    figure,
    framed,
    further,
    long_table,
    nothing,
    paragraphs,
)
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.wording import bytes_in_words, number_in_words, numbers_alike, share_in_words, shares_alike

LEAD = (
    "Servers hold the parameters and step as gradients arrive. The staleness of a gradient is the number of server "
    "steps since the parameters on which it was computed."
)
MEANINGS = (
    "Counts are sums over all seeds and the full runs. The weight of a gradient is a multiple of an equal share: in a "
    "step of all workers each has 1; a dropped gradient has 0. Under staleness_scaling=gap single elements are "
    "scaled, which the weight does not include."
)
SERVERS = 16
"""The most servers drawn of each arm."""
_NAMED = 12
WHOLE = 0.999
"""The least weight, in equal shares, of a gradient that is not scaled down."""
_ROW = 36.0
_NAME = 28.0
_THICK = 11.0


class Server(Part):
    """A worker that holds a part of the parameters."""

    rank: int
    busy_share: float | None
    """The share of the time between pauses in which it handled messages; null in a virtual world."""
    bytes_in: float
    """Bytes from other workers, a second."""
    bytes_out: float


class ServersSummary(Part):
    """The work of servers, in all runs that count together."""

    gradients: int
    """Gradients in steps, or dropped."""
    steps: int
    staleness: tuple[int, ...]
    """Gradients in steps, by the steps since their parameters: 0, 1, 2 ..."""
    staleness_mean: float
    weights: tuple[float, ...]
    """Their mean weights, by the same steps, where an equal share of a step of all workers is 1."""
    dropped_share: float
    """The share of gradients that were dropped."""
    scaled_share: float
    """The share of gradients that counted less than an equal share in their step."""
    ranks: tuple[tuple[int, int, int], ...]
    """By worker: its rank, its gradients in steps, and those that were dropped."""
    servers: tuple[Server, ...]
    """By rank."""


@dataclass
class Load:
    """The load of one server."""

    seconds: float = 0.0
    busy: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0

    def add(self, other: Load | Served) -> None:
        self.seconds += other.seconds
        self.busy += other.busy
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


@dataclass
class ServerFigures:
    """The servers of one run, or of several together."""

    loads: dict[int, Load] = field(default_factory=lambda: defaultdict(Load))
    """By the rank of the server."""
    steps: int = 0
    """Steps of the servers that decide."""
    taken: Counter[int] = field(default_factory=Counter)
    """Gradients in steps, by staleness."""
    counted: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """The weights of gradients, by staleness."""
    dropped: Counter[int] = field(default_factory=Counter)
    by_rank: Counter[int] = field(default_factory=Counter)
    dropped_by_rank: Counter[int] = field(default_factory=Counter)

    def take(self, rank: int, row: Served) -> None:
        """Add a row of the server of `rank`."""
        self.loads[rank].add(row)
        if row.taken is None:
            return
        self.steps += row.steps
        for (age, count), counted in zip(row.taken, row.counted or (), strict=True):
            self.taken[age] += count
            self.counted[age] += counted
        for age, count in row.dropped or ():
            self.dropped[age] += count
        for source, count, dropped in row.given or ():
            self.by_rank[source] += count
            self.dropped_by_rank[source] += dropped

    def add(self, other: ServerFigures) -> None:
        """Add another run."""
        for rank, load in other.loads.items():
            self.loads[rank].add(load)
        self.steps += other.steps
        for age, counted in other.counted.items():
            self.counted[age] += counted
        self.taken.update(other.taken)
        self.dropped.update(other.dropped)
        self.by_rank.update(other.by_rank)
        self.dropped_by_rank.update(other.dropped_by_rank)


def figures_of_servers(rows: Mapping[int, Sequence[Served]]) -> ServerFigures | None:
    """Return the figures of `rows`, by rank; None without servers or gradients."""
    figures = ServerFigures()
    for rank, server_rows in rows.items():
        for row in server_rows:
            figures.take(rank, row)
    return figures if figures.taken.total() else None


def servers_summary(runs: Sequence[ServerFigures]) -> ServersSummary | None:
    """Return the summary of all runs of an arm together."""
    if not runs:
        return None
    all_runs = ServerFigures()
    for run in runs:
        all_runs.add(run)
    taken, dropped = all_runs.taken, all_runs.dropped.total()
    total = taken.total() + dropped
    weights = tuple(all_runs.counted[age] / taken[age] if taken[age] else 0.0 for age in range(max(taken) + 1))
    ranks = sorted(all_runs.by_rank.keys() | all_runs.dropped_by_rank.keys())
    return ServersSummary(
        gradients=total,
        steps=all_runs.steps,
        staleness=tuple(taken[age] for age in range(len(weights))),
        staleness_mean=sum(age * count for age, count in taken.items()) / taken.total(),
        weights=weights,
        dropped_share=dropped / total,
        scaled_share=sum(taken[age] for age, weight in enumerate(weights) if weight < WHOLE) / total,
        ranks=tuple((rank, all_runs.by_rank[rank], all_runs.dropped_by_rank[rank]) for rank in ranks),
        servers=tuple(_server(rank, all_runs.loads[rank]) for rank in sorted(all_runs.loads)),
    )


def _server(rank: int, load: Load) -> Server:
    seconds = load.seconds or 1.0
    return Server(
        rank=rank,
        busy_share=min(1.0, load.busy / seconds) if load.busy else None,
        bytes_in=load.bytes_in / seconds,
        bytes_out=load.bytes_out / seconds,
    )


def _body(view: View, arms: Arms[ServersSummary]) -> Iterator[Markup]:
    yield framed(view, "Gradients at the servers", arms_table(arms, _COLUMNS), paragraphs(MEANINGS))
    yield element("div", _staleness(view, arms), _loads(view, arms), class_="figures")


def _counts(summary: ServersSummary) -> float:
    return (
        sum(count * weight for count, weight in zip(summary.staleness, summary.weights, strict=True))
        / summary.gradients
    )


def _most_dropped(summary: ServersSummary) -> str:
    rank, taken, dropped = max(summary.ranks, key=lambda counts: counts[2], default=(0, 0, 0))
    return (
        f"rank {rank}, {share_in_words(dropped / (taken + dropped))} of its gradients" if dropped else nothing("none")
    )


def _staleness(view: View, arms: Arms[ServersSummary]) -> Markup:
    title = "server steps since its parameters"
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
    listed = long_table(["strategy", "staleness", "share", "weight of each"], numbers)
    return figure(
        view, "Staleness of gradients",
        lambda width: column_chart(
            rows, title=title, width=width, label=f"Gradients by staleness in steps. {'. '.join(lines)}."
        ),
        numbers=listed, wide=HALF,
    )  # fmt: skip


def _loads(view: View, arms: Arms[ServersSummary]) -> Markup:
    rows = [(arm.name, server) for arm, summary in arms for server in summary.servers[:SERVERS]]
    label = f"Loads. {' '.join(f'{name}, rank {server.rank}: {_load(server)}.' for name, server in rows)}"
    notes = [
        further("servers", (len(summary.servers) - SERVERS for _, summary in arms)),
        "The busy share is unknown: in virtual time servers handle messages instantly." if view.is_virtual else "",
        "Bytes are those exchanged with other workers.",
    ]
    return figure(
        view, "Load of each server",
        lambda width: load_chart(rows, view.looks, title="share of time busy", width=width, label=label),
        note=" ".join(filter(None, notes)), wide=HALF,
    )  # fmt: skip


def _load(server: Server) -> str:
    busy = "" if server.busy_share is None else f"{share_in_words(server.busy_share)} busy, "
    return f"{busy}in {bytes_in_words(server.bytes_in)}/s, out {bytes_in_words(server.bytes_out)}/s"


def load_chart(
    rows: Sequence[tuple[str, Server]], looks: Mapping[str, int], *, title: str, width: float, label: str
) -> Markup:
    """Draw the servers of each arm by its name, on one scale up to the greatest share, and to a tenth at least."""
    shares = [server.busy_share for _, server in rows if server.busy_share is not None]
    x = Scale(0.0, max([0.1, *shares]), 1.0, width - 12.0)
    parts, y, before = [], 0.0, None
    for name, server in rows:
        colour = drawing.colour_of(looks[name])
        if name != before:
            y, before = y + _NAME, name
            words = drawing.text(1, y - 6.0, drawing.shortened(name, width, 13), class_="name halo")
            parts.append(drawing.group(words, class_=colour))
        hint = drawing.shortened(f"rank {server.rank}: {_load(server)}", width)
        parts.append(drawing.text(1, y + 12.0, hint, class_="small"))
        if server.busy_share is not None:
            wide = max(1.0, x(server.busy_share) - 1.0)
            parts.append(drawing.group(drawing.bar(1, y + 17.0, wide, _THICK, class_="bins", hint=hint), class_=colour))
        y += _ROW if server.busy_share is not None else _ROW - _THICK - 5.0
    if shares:
        parts.append(drawing.text(1, y + 10.0, f"{title}; the full width is {x.high:.0%}", class_="axis-title"))
    return drawing.svg(width, y + (18.0 if shares else 4.0), joined(parts), label=label)


_COLUMNS: TableColumns[ServersSummary] = (
    ("steps", lambda servers: f"{servers.steps:,}", None),
    ("gradients", lambda servers: f"{servers.gradients:,}", None),
    ("mean staleness", lambda servers: servers.staleness_mean, numbers_alike),
    ("dropped", lambda servers: servers.dropped_share, shares_alike),
    ("scaled down", lambda servers: servers.scaled_share, shares_alike),
    ("mean weight", _counts, numbers_alike),
    ("most dropped", _most_dropped, None),
)
TOPIC = Topic(
    name="servers",
    title="Servers",
    lead=LEAD,
    part=ServersSummary,
    measure=lambda run: figures_of_servers({rank.rank: rank.served for rank in run.records.ranks}),
    summarize=servers_summary,
    body=_body,
    data={
        "served": (
            "staleness gradients weight",
            lambda summary: (
                (age, *pair) for age, pair in enumerate(zip(summary.staleness, summary.weights, strict=True))
            ),
        ),
        "given": ("rank taken dropped", lambda summary: summary.ranks),
        "servers": data_of("rank busy_share bytes_in bytes_out", lambda summary: summary.servers),
    },
)
