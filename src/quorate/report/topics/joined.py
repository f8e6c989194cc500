"""Workers that joined a run under way, in the place of others or beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from quorate.records.rows import Gone
from quorate.records.rows import Joined as JoinedRow
from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import View, alike, framed, nothing, table
from quorate.report.reading.sound import is_number
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.wording import seconds_alike

LEAD = (
    "Workers that were not there at the start: quorate run --restart starts one in place of one that died, and quorate "
    "join one more. Each began with a copy of a replica that trained. What they did counts in the throughput from when "
    "they came. Their step 1 is not that of the others: where not everybody waits for everybody they are left out of "
    "what holds steps of equal number side by side."
)
_HEADS = ["strategy", "seed", "worker", "in place of", "stepped from", "from round", "it took", "trained then"]


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
    times = alike([[newcomer.seconds, newcomer.waited] for _, newcomer in newcomers], [seconds_alike, seconds_alike])
    rows = [[arm.name, *_cells(newcomer, *words)] for (arm, newcomer), words in zip(newcomers, times, strict=True)]
    if rows:
        yield framed(view, "Workers that joined", table(_HEADS, rows))


def _cells(newcomer: Joined, when: str, waited: str) -> list[str]:
    of = nothing("nobody: it was asked for") if newcomer.replaced is None else f"rank {newcomer.replaced}"
    since = "from its quorate.join() on" if newcomer.replaced is None else "from that death on"
    took = waited if newcomer.waited is None else f"{waited}, {since}"
    return [str(newcomer.seed), f"rank {newcomer.rank}", of, when, str(newcomer.round), took, str(newcomer.live)]


TOPIC = Topic(
    name="joined",
    title="Who joined",
    lead=LEAD,
    part=Newcomers,
    is_flat=True,
    measure=joined_of,
    summarize=lambda runs: Newcomers(joined=tuple(chain.from_iterable(runs))),
    body=_body,
    data={"joined": data_of("seed rank replaced seconds round waited live", lambda part: part.joined)},
)
