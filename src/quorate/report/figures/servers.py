"""Servers of one run and of an arm: the staleness and weights of gradients, and the load of each server."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quorate.records.rows import Served
from quorate.report.schema_parts import Server, ServersSummary

WHOLE = 0.999
"""The least weight, in equal shares, of a gradient that is not scaled down."""


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
        for totals, others in (
            (self.taken, other.taken),
            (self.dropped, other.dropped),
            (self.by_rank, other.by_rank),
            (self.dropped_by_rank, other.dropped_by_rank),
        ):
            totals.update(others)


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
