"""The schema of `summary.json`: everything the page, the Markdown summary and the CSV files show.

Times are seconds, sizes bytes; an axis of seconds is training time, without evaluation. Unknown fields are refused.
A value that was not measured is null, never 0.
"""

from __future__ import annotations

from typing import Literal

from quorate.report.schema_exclusions import ExclusionsSummary as ExclusionsSummary
from quorate.report.schema_mesh import LayersSummary as LayersSummary
from quorate.report.schema_mesh import StagesSummary as StagesSummary
from quorate.report.schema_parts import Change as Change
from quorate.report.schema_parts import Estimate as Estimate
from quorate.report.schema_parts import Fault as Fault
from quorate.report.schema_parts import GoodputSummary as GoodputSummary
from quorate.report.schema_parts import Joined as Joined
from quorate.report.schema_parts import Lane as Lane
from quorate.report.schema_parts import Mark as Mark
from quorate.report.schema_parts import MemorySummary as MemorySummary
from quorate.report.schema_parts import Merge as Merge
from quorate.report.schema_parts import MergesSummary as MergesSummary
from quorate.report.schema_parts import NoisePoint as NoisePoint
from quorate.report.schema_parts import NoiseSummary as NoiseSummary
from quorate.report.schema_parts import OuterPoint as OuterPoint
from quorate.report.schema_parts import OuterSummary as OuterSummary
from quorate.report.schema_parts import Part
from quorate.report.schema_parts import RoundsSummary as RoundsSummary
from quorate.report.schema_parts import Server as Server
from quorate.report.schema_parts import ServersSummary as ServersSummary

FORMAT = 1
"""Rises when a field changes its meaning or goes away."""

Difference = Literal["better", "worse", "no difference shown"]


NOT_BEGUN = "it has not begun"
"""`Outcome.why` of a run that there is no folder of."""
STOPPED, UNDER_WAY = "it was stopped", "it is under way"
"""Likewise of a run of a comparison that has begun, and not ended."""


class Outcome(Part):
    """How one run ended."""

    seed: int
    folder: str
    """Relative to the comparison's folder."""
    status: int | None
    """The exit status; null where the run did not end (it was stopped, or is still under way)."""
    seconds: float | None
    """By the wall clock, start-up included."""
    why: str | None
    """The sentence that says why it failed."""


class Curve(Part):
    """Quality over the course of one run, at every evaluation; equally long lists."""

    seed: int
    seconds: tuple[float, ...]
    examples: tuple[int, ...]
    """Of all workers together; empty where they were not counted."""
    bytes: tuple[int, ...]
    """Sent by all workers together."""
    quality: tuple[float, ...]


class StepTimes(Part):
    """How long steps took, over all ranks and seeds, warm-up left out."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    edges: tuple[float, ...]
    """The edges of the histogram's bins, the same for all arms; the last bin also holds what took longer."""
    counts: tuple[int, ...]
    shares: dict[str, float]
    """Mean seconds of a step by what they went into, in this order: data, compute, pace (injected, stands for
    compute), delay (injected lateness), encode, waiting (for others), communication (exposed), decode, update, other.
    They add up to `mean`."""


class RankArrival(Part):
    """How one rank came to the meeting point, over all steps of one run; see `Arrival.is_together`."""

    rank: int
    lateness_mean: float
    """Seconds after the first one to arrive."""
    lateness_p95: float
    last_share: float
    """The share of steps in which it came last."""
    step_mean: float
    """Its own mean step time: under a strategy that waits, the same for all."""


class Arrival(Part):
    """Who is slow, measured at the meeting point, in the first run of an arm that ended well."""

    seed: int
    is_together: bool
    """Whether everybody waited for everybody. Where not, there was no meeting point: lateness is how much longer a rank
    was at work on its step than the fastest rank on its step of equal number, as if all had begun them together."""
    ranks: tuple[RankArrival, ...]
    slow_rank: int | None
    """The rank that is significantly slower than the others; null where there is none."""
    sentence: str
    """What is to be said of it."""
    steps: tuple[int, ...]
    """The first step of each column of the heat map; they rise."""
    heat: tuple[tuple[float | None, ...], ...]
    """Mean lateness by rank (rows) and range of steps (columns)."""


class Replicas(Part):
    """Replicas that differ between steps, where an evaluation is of their mean."""

    distance: tuple[Curve, ...]
    """By run, at every evaluation: the root mean square distance of the replicas from their mean, as a share of the
    norm of the mean; `quality` holds it."""
    last_distance: Estimate
    """At the last evaluation."""
    quality: tuple[Curve, ...]
    """By run, the mean quality of single replicas; empty where it was not measured."""
    last_quality: Estimate | None
    """At the last evaluation."""


class ArmSummary(Part):
    """One side of the comparison."""

    name: str
    strategy: str | None
    settings: dict[str, object]
    is_baseline: bool
    learning_rate_factor: float | None
    runs: tuple[Outcome, ...]
    seeds: tuple[int, ...]
    """Of the runs that figures and charts are of: they have ended well, every arm has had their seed, and so has the
    baseline where any of them has."""
    quality: Estimate | None
    """At the end."""
    time_to_target: Estimate | None
    """Seconds; over the runs that reached it."""
    target_reached: tuple[int, int] | None
    """So many, of so many."""
    examples_per_second: Estimate | None
    seconds: Estimate | None
    """Training time."""
    examples: Estimate | None
    speedup: Estimate | None
    """Examples per second over the baseline's, by pairs of equal seed: geometric mean; null for the baseline."""
    target_speedup: Estimate | None
    """The baseline's time to target over this one's, likewise, where both reached it."""
    no_wait_share: Estimate | None
    """Examples per second over what the workers would do if nobody ever waited and exchanges cost nothing."""
    bytes_per_step: Estimate | None
    """Sent, per rank."""
    peak_bytes: Estimate | None
    """Resident memory of the greatest rank."""
    differences: dict[str, Difference]
    """By the field's name: against the baseline, better or worse where the intervals of the difference exclude none."""
    alongside: dict[str, float]
    """By the field's name: the baseline's mean over the seeds that this arm has, where it lacks some that the baseline
    has."""
    steps: StepTimes | None
    curves: tuple[Curve, ...]
    losses: tuple[Curve, ...]
    """The training loss (mean over ranks and neighbouring steps, at most 200 points); `quality` holds the loss."""
    arrival: Arrival | None
    timeline: tuple[Lane, ...]
    """Some 20 typical steps of the run that `arrival` is of; 16 ranks at most, the slow one among them."""
    marks: tuple[Mark, ...] = ()
    """The rounds in the timeline."""
    rounds: RoundsSummary | None = None
    """Null where the records have none: where everybody waits for everybody, every update has a fresh gradient of every
    worker."""
    merges: MergesSummary | None = None
    """Null where there are no learners that never wait."""
    outer: OuterSummary | None = None
    """Null where there are no outer steps, or none is recorded."""
    noise: NoiseSummary | None = None
    """Null where means of gradients are not formed, or none was measured."""
    exclusions: ExclusionsSummary | None = None
    """Null where no gradient was left out."""
    servers: ServersSummary | None = None
    """Null where parameters lie on no servers."""
    memory: MemorySummary | None = None
    """Null where none was recorded, as in a virtual world."""
    layers: LayersSummary | None = None
    """Null where no layers are computed by several workers together."""
    stages: StagesSummary | None = None
    """Null where no model is in stages."""
    replicas: Replicas | None = None
    """Null where replicas are equal after every step."""
    faults: tuple[Fault, ...] = ()
    """Run by run, in order."""
    joined: tuple[Joined, ...] = ()
    """Likewise."""
    goodput: GoodputSummary | None = None
    """Null where no worker has failed."""


class Trial(Part):
    """One run of the search for a learning rate."""

    arm: str
    factor: float
    """Of the usual learning rate."""
    seed: int
    quality: float | None
    is_chosen: bool


class Metric(Part):
    """What quality is."""

    name: str
    higher_is_better: bool


class Fairness(Part):
    """What was equal, and what differed."""

    equal: tuple[str, ...]
    """Sentences."""
    differed: dict[str, dict[str, object]]
    """By key, the value of each arm; only keys in which arms differ."""
    warm_up_steps: int
    """Left out of every figure about steps."""
    seeds: tuple[int, ...]


class Reproduce(Part):
    """What it takes to do it again."""

    command: tuple[str, ...]
    started: str
    git: dict[str, object] | None
    packages: dict[str, str | None]
    machine: dict[str, object]
    settings: dict[str, object]


class Summary(Part):
    """`summary.json`."""

    format: int = FORMAT
    title: str
    world: Literal["real", "virtual"]
    workers: int
    verdict: str
    """One sentence."""
    warnings: tuple[str, ...]
    """What a reader has to know: arms that failed, one seed only, work that was not equal."""
    metric: Metric | None
    target: float | None
    baseline: str | None
    imbalance: str | None
    pace: str | None
    arms: tuple[ArmSummary, ...]
    tuning: tuple[Trial, ...]
    fairness: Fairness
    reproduce: Reproduce
