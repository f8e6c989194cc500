"""The execution of `quorate simulate --failures`: each row is simulated, written, drawn and shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from quorate.cli.simulate.failing_plan import FailingPlan
from quorate.cli.simulate.keeping import begin, keep, tell_kept
from quorate.cli.simulate.results import NOTHING, Columns, Shown, show
from quorate.report.wording import seconds_in_words, share_in_words
from quorate.simulation.failing.grid import FailingRow, rows_of
from quorate.simulation.failing.picture import picture


def tell_failing(plan: FailingPlan, folder: Path, also: Path | None, *, as_json: bool) -> int:
    """Simulate the plan, write and show the results; return the exit status."""
    begin(folder, plan.as_json)
    with Shown() as shown:
        rows = list(rows_of(plan.grid, shown.begins_with))
    results = {"rows": [row.as_json() for row in rows]}
    about = keep(folder, also, results, lambda: picture(rows, plan.heading, plan.about))
    tell_kept(about, folder, lambda: show(rows, _columns(rows)), _counts(rows), as_json=as_json)
    return 0


def _columns(rows: Sequence[FailingRow]) -> Columns[FailingRow]:
    several = len({row.network for row in rows}) > 1
    return [
        ("strategy", lambda row: row.strategy),
        ("workers", lambda row: f"{row.workers:,}"),
        ("learners", lambda row: f"{row.learners:,}"),
        ("network", lambda row: (row.network or NOTHING) if several else NOTHING),
        ("goodput", lambda row: share_in_words(row.goodput.goodput)),
        ("uptime", lambda row: f"{row.goodput.uptime:.1%}"),
        ("lost", lambda row: _or_nothing(row.goodput.lost)),
        ("down", lambda row: _or_nothing(row.goodput.down)),
        ("stopped", lambda row: _or_nothing(row.goodput.stopped)),
        ("waiting", lambda row: _or_nothing(row.goodput.waiting)),
        ("moving", lambda row: _or_nothing(row.goodput.moving)),
        ("saving", lambda row: _or_nothing(row.goodput.saving)),
        (
            "checkpoint",
            lambda row: NOTHING if row.goodput.checkpoint is None else seconds_in_words(row.goodput.checkpoint),
        ),
    ]


def _or_nothing(share: float) -> str:
    return NOTHING if share < 1e-9 else share_in_words(share)


def _counts(rows: Sequence[FailingRow]) -> Iterator[str]:
    """Yield `1,200,000 workers: 98,412 deaths, 0 stops, 0 slow times; 312 struck several at once`."""
    for workers, tally in {row.workers: row.goodput.failures for row in rows}.items():
        more = f"; {tally.bursts:,} struck several at once, {tally.workers:,} workers in all" if tally.bursts else ""
        yield f"{workers:,} workers: {tally.deaths:,} deaths, {tally.stops:,} stops, {tally.slows:,} slow times{more}"
