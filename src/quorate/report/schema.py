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
"""Rises when a field changes its meaning or is removed."""

Difference = Literal["better", "worse", "no difference shown"]


NOT_BEGUN = "it has not begun"
"""`Outcome.why` of a run without a folder."""
STOPPED, UNDER_WAY = "it was stopped", "it is under way"
"""`Outcome.why` of a run of a comparison that has begun, and not ended."""


class Outcome(Part):
    """The end of one run."""

    seed: int
    folder: str
    """Relative to the comparison's folder."""
    status: int | None
    """The exit status; null if the run did not end (it was stopped, or is still under way)."""
    seconds: float | None
    """By the wall clock, start-up included."""
    why: str | None
    """The reason of a failure, in a sentence."""


class Curve(Part):
    """Quality over the course of one run, at every evaluation; equally long lists."""

    seed: int
    seconds: tuple[float, ...]
    examples: tuple[int, ...]
    """Examples of all workers together; empty if they were not counted."""
    bytes: tuple[int, ...]
    """Sent by all workers together."""
    quality: tuple[float, ...]


class StepTimes(Part):
    """The lengths of steps, over all ranks and seeds, without the warm-up."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    edges: tuple[float, ...]
    """The edges of the histogram's bins, the same for all arms; the last bin also holds longer steps."""
    counts: tuple[int, ...]
    shares: dict[str, float]
    """Mean seconds of a step by activity, in this order: data, compute, pace (injected, stands for compute), delay
    (injected lateness), encode, waiting (for others), communication (exposed), decode, update, other. They add up to
    `mean`."""


class RankArrival(Part):
    """The arrivals of one rank at the meeting point, over all steps of one run; see `Arrival.is_together`."""

    rank: int
    lateness_mean: float
    """Seconds after the first one to arrive."""
    lateness_p95: float
    last_share: float
    """The share of steps in which it came last."""
    step_mean: float
    """Its own mean step time: under a strategy that waits, the same for all."""


class Arrival(Part):
    """The slow ranks, measured at the meeting point, in the first run of an arm that ended well."""

    seed: int
    is_together: bool
    """Whether everybody waited for everybody. If not, there was no meeting point: lateness is how much longer a rank
    was at work on its step than the fastest rank on its step of equal number, as if all had begun them together."""
    ranks: tuple[RankArrival, ...]
    slow_rank: int | None
    """The rank that is significantly slower than the others; null if there is none."""
    sentence: str
    """The finding, as a sentence."""
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
    """The seeds of the runs in figures and charts: they have ended well, every arm has had their seed, and so has the
    baseline if it has any of them."""
    quality: Estimate | None
    """The final quality."""
    time_to_target: Estimate | None
    """Seconds; over the runs that reached it."""
    target_reached: tuple[int, int] | None
    """The number of runs that reached it, and the number of runs."""
    examples_per_second: Estimate | None
    seconds: Estimate | None
    """Training time."""
    examples: Estimate | None
    speedup: Estimate | None
    """Examples per second over the baseline's, by pairs of equal seed: geometric mean; null for the baseline."""
    target_speedup: Estimate | None
    """The baseline's time to target over this one's, by pairs of equal seed that both reached it: geometric mean."""
    no_wait_share: Estimate | None
    """Examples per second over the rate if nobody ever waited and exchanges cost nothing."""
    bytes_per_step: Estimate | None
    """Bytes sent per rank."""
    peak_bytes: Estimate | None
    """Resident memory of the greatest rank."""
    differences: dict[str, Difference]
    """By the field's name: better or worse than the baseline, if the interval of the difference shows one."""
    alongside: dict[str, float]
    """By the field's name: the baseline's mean over the seeds of this arm, if that lacks some of the baseline's."""
    steps: StepTimes | None
    curves: tuple[Curve, ...]
    losses: tuple[Curve, ...]
    """The training loss (mean over ranks and neighbouring steps, at most 200 points); `quality` holds the loss."""
    arrival: Arrival | None
    timeline: tuple[Lane, ...]
    """Some 20 typical steps of the run of `arrival`; 16 ranks at most, with the slow one."""
    marks: tuple[Mark, ...] = ()
    """The rounds in the timeline."""
    rounds: RoundsSummary | None = None
    """Null if everybody waits for everybody: every update then has a fresh gradient of every worker."""
    merges: MergesSummary | None = None
    """Null without learners that never wait."""
    outer: OuterSummary | None = None
    """Null without outer steps, or records of them."""
    noise: NoiseSummary | None = None
    """Null if means of gradients are not formed, or none was measured."""
    exclusions: ExclusionsSummary | None = None
    """Null if no gradient was left out."""
    servers: ServersSummary | None = None
    """Null without servers."""
    memory: MemorySummary | None = None
    """Null if none was recorded, as in a virtual world."""
    layers: LayersSummary | None = None
    """Null if no layers are computed by several workers together."""
    stages: StagesSummary | None = None
    """Null without a model in stages."""
    replicas: Replicas | None = None
    """Null if replicas are equal after every step."""
    faults: tuple[Fault, ...] = ()
    """Run by run, in order."""
    joined: tuple[Joined, ...] = ()
    """Run by run, in order."""
    goodput: GoodputSummary | None = None
    """Null if no worker has failed."""


class Trial(Part):
    """One run of the search for a learning rate."""

    arm: str
    factor: float
    """The factor of the usual learning rate."""
    seed: int
    quality: float | None
    is_chosen: bool


class Metric(Part):
    """The measure of quality."""

    name: str
    higher_is_better: bool


class Fairness(Part):
    """The equal and the different settings of arms."""

    equal: tuple[str, ...]
    """Sentences."""
    differed: dict[str, dict[str, object]]
    """By key, the value of each arm; only keys in which arms differ."""
    warm_up_steps: int
    """Steps left out of every figure about steps."""
    seeds: tuple[int, ...]


class Reproduce(Part):
    """The means to reproduce the results."""

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
    """Cautions: arms that failed, one seed only, work that was not equal."""
    metric: Metric | None
    target: float | None
    baseline: str | None
    imbalance: str | None
    pace: str | None
    arms: tuple[ArmSummary, ...]
    tuning: tuple[Trial, ...]
    fairness: Fairness
    reproduce: Reproduce
