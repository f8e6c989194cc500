"""Faults: workers that died while the others went on, and the share of the possible work that was left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quorate.records.rows import Gone, Step
from quorate.report.charts.markup import Markup
from quorate.report.figures.goodput import Goodput, goodput_of, has_failed
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, arms_table, framed, paragraphs
from quorate.report.schema import Estimate, Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.wording import numbers_alike, seconds_alike, shares_alike

LEAD = (
    "Workers that died while the others continued with equal replicas. A gradient that a dead worker had computed but "
    "not sent is lost. The interruption is the longest time between two consecutive steps of a surviving worker "
    "around the moment at which the death was noticed; it includes one full step."
)
GOODPUT = (
    "Goodput is the number of useful steps divided by the number of possible ones, counted for each worker. A step is "
    "useful if its result is part of the final model. Possible steps are those that the initial workers could have "
    "taken in the same time without failures."
)


class Fault(Part):
    """A worker that died and was outlived."""

    seed: int
    rank: int
    why: str
    """In words: `was killed by signal 9 (SIGKILL)`."""
    seconds: float
    """When the others noticed, in seconds of the run's training time."""
    round: int
    """The newest update at that time."""
    standstill: float | None
    """Seconds: the longest time between two steps of one of the others around it."""
    left: int
    """Workers that went on."""


class GoodputSummary(Part):
    """The useful share of the possible steps, after failures; by seed, steps of single workers."""

    share: Estimate
    """Useful over possible steps."""
    useful: Estimate
    """Steps whose work is in the model in the end."""
    lost: Estimate
    """Steps that were recorded, and whose work was lost."""
    possible: Estimate
    """Workers at the start, times seconds, by those of an undisturbed step."""
    step_seconds: Estimate
    """The seconds of an undisturbed step."""


class Faults(Part):
    """The failures of an arm."""

    faults: tuple[Fault, ...] = ()
    """Run by run, in order."""
    goodput: GoodputSummary | None = None
    """Null if no worker has failed."""


@dataclass(frozen=True)
class FaultFigures:
    """The failures of one run."""

    faults: tuple[Fault, ...]
    goodput: Goodput | None


def faults_of(run: MeasuredRun) -> FaultFigures:
    """Return the workers that died and were outlived, and the goodput if workers failed."""
    records = run.records
    faults = [
        Fault(
            seed=run.seed,
            rank=death.rank,
            why=death.reason,
            seconds=records.training_seconds(death.time),
            round=death.round,
            standstill=standstill(death, records.steps),
            left=death.left,
        )
        for death in (records.deaths if records.has_steps else ())
    ]
    return FaultFigures(tuple(faults), goodput_of(records) if has_failed(records) else None)


def standstill(death: Gone, steps: Mapping[int, Sequence[Step]]) -> float | None:
    """Return the longest time in seconds between two steps of a surviving rank around the notice of a death.

    None if nobody stepped on both sides of it.
    """
    longest = [
        late.end - early.end
        for rank, rank_steps in steps.items()
        if rank != death.rank
        for early, late in pairwise(rank_steps)
        if early.end <= death.time + 1.0 and late.end >= death.time - 1.0
    ]
    return max(longest, default=None)


def _summarized(runs: Sequence[FaultFigures]) -> Faults:
    goodputs = [run.goodput for run in runs if run.goodput is not None]
    estimates = {
        name: Estimate.of([getattr(goodput, name) for goodput in goodputs])
        for name in (GoodputSummary.model_fields if goodputs else ())
    }
    faults = tuple(fault for run in runs for fault in run.faults)
    return Faults(faults=faults, goodput=GoodputSummary(**estimates) if goodputs else None)


def _body(view: View, arms: Arms[Faults]) -> Iterator[Markup]:
    left = [(arm, part.goodput) for arm, part in arms if part.goodput is not None]
    died = [(arm, fault) for arm, part in arms for fault in part.faults]
    if left:
        yield framed(view, "Goodput", arms_table(left, _LEFT), paragraphs(GOODPUT))
    if died:
        yield framed(view, "Workers that died", arms_table(died, _DIED))


_LEFT: TableColumns[GoodputSummary] = (
    ("goodput", lambda goodput: goodput.share.mean, shares_alike),
    ("useful steps", lambda goodput: goodput.useful.mean, numbers_alike),
    ("lost", lambda goodput: goodput.lost.mean, numbers_alike),
    ("possible", lambda goodput: goodput.possible.mean, numbers_alike),
    ("step without faults", lambda goodput: goodput.step_seconds.mean, seconds_alike),
)
_DIED: TableColumns[Fault] = (
    ("seed", lambda fault: str(fault.seed), None),
    ("worker", lambda fault: f"rank {fault.rank}", None),
    ("why", lambda fault: fault.why, None),
    ("noticed at", lambda fault: fault.seconds, seconds_alike),
    ("after update", lambda fault: str(fault.round), None),
    ("interruption", lambda fault: fault.standstill, seconds_alike),
    ("workers left", lambda fault: str(fault.left), None),
)
TOPIC = Topic(
    name="faults",
    title="Faults",
    lead=LEAD,
    part=Faults,
    is_flat=True,
    measure=faults_of,
    summarize=_summarized,
    body=_body,
    data={"faults": data_of("seed rank why seconds round standstill left", lambda part: part.faults)},
)
