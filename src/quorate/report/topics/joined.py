"""Workers that joined a run under way, in the place of others or beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from quorate.records.rows import Gone
from quorate.records.rows import Joined as JoinedRow
from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, alike, arms_table, framed, nothing
from quorate.report.reading.sound import is_number
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.wording import seconds_alike

LEAD = (
    "Workers that were not there at the start: quorate run --restart replaces a dead worker, and quorate join adds "
    "one. Each copied the replica of a training worker. The throughput includes their steps from the time they "
    "joined. Their step numbers differ from those of the other workers, so figures that compare steps of the same "
    "number leave them out unless all workers wait for each other."
)


class Joined(Part):
    """A worker that joined the run under way."""

    seed: int
    rank: int
    replaced: int | None
    """The dead worker that it replaces; null if it replaces none."""
    seconds: float
    """The begin of its first step, in seconds of the run's training time."""
    round: int
    """The round that let it in."""
    waited: float | None
    """Seconds from the notice of that death, or else from its `quorate.join()`, until then."""
    live: int
    """Workers that trained from then on."""


class Newcomers(Part):
    """The workers that joined runs of an arm."""

    joined: tuple[Joined, ...] = ()
    """Run by run, in order."""


def joined_of(run: MeasuredRun) -> tuple[Joined, ...] | None:
    """Return the workers that joined; None without steps."""
    records = run.records
    if not records.has_steps:
        return None
    return tuple(
        Joined(
            seed=run.seed,
            rank=joining.rank,
            replaced=None if replaced is None else replaced.rank,
            seconds=records.training_seconds(joining.time),
            round=joining.round,
            waited=seconds_to_join(joining, replaced, records.starts.get(joining.rank, {})),
            live=joining.live,
        )
        for joining, replaced in records.replacements
    )


def seconds_to_join(joining: JoinedRow, replaced: Gone | None, start: Mapping[str, Any]) -> float | None:
    """Return the seconds since the replaced worker's death was noticed, else since `quorate.join()`, or None."""
    now = start.get("now")
    since = replaced.time if replaced is not None else now if is_number(now) else None
    return None if since is None else max(0.0, joining.time - since)


def _body(view: View, arms: Arms[Newcomers]) -> Iterator[Markup]:
    newcomers = [(arm, newcomer) for arm, part in arms for newcomer in part.joined]
    waits = alike([newcomer.waited for _, newcomer in newcomers], seconds_alike)
    rows = [(arm, newcomer, waited) for (arm, newcomer), waited in zip(newcomers, waits, strict=True)]
    if rows:
        yield framed(view, "Newcomers", arms_table(rows, _COLUMNS))


def _place(newcomer: Joined, waited: str) -> str:
    return nothing("none: it was added") if newcomer.replaced is None else f"rank {newcomer.replaced}"


def _took(newcomer: Joined, waited: str) -> str:
    since = "after its quorate.join()" if newcomer.replaced is None else "after that death"
    return waited if newcomer.waited is None else f"{waited}, {since}"


_COLUMNS: TableColumns[Joined, str] = (
    ("seed", lambda newcomer, waited: str(newcomer.seed), None),
    ("worker", lambda newcomer, waited: f"rank {newcomer.rank}", None),
    ("in place of", _place, None),
    ("first step at", lambda newcomer, waited: newcomer.seconds, seconds_alike),
    ("first round", lambda newcomer, waited: str(newcomer.round), None),
    ("time to join", _took, None),
    ("workers then", lambda newcomer, waited: str(newcomer.live), None),
)
TOPIC = Topic(
    name="joined",
    title="Workers that joined",
    lead=LEAD,
    part=Newcomers,
    is_flat=True,
    measure=joined_of,
    summarize=lambda runs: Newcomers(joined=tuple(chain.from_iterable(runs))),
    body=_body,
    data={"joined": data_of("seed rank replaced seconds round waited live", lambda part: part.joined)},
)
