"""The parts of the schema of `summary.json` about rounds, lanes and faults, and the base of all parts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """The base of all parts of the schema: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(Part):
    """A figure measured once per seed: the mean, and its 95% interval where there are two seeds or more."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]
    """One per seed, in the order of `schema.ArmSummary.runs`; runs that failed are left out."""


class Lane(Part):
    """One rank in the timeline of typical steps: spans of (activity as in `schema.StepTimes.shares`, begin, end).

    Seconds are since the beginning of the lanes.
    """

    rank: int
    spans: tuple[tuple[str, float, float], ...]


class Mark(Part):
    """One round in the timeline. Seconds are since the beginning of the lanes."""

    number: int
    time: float
    """When the first replica had applied it."""
    given: tuple[tuple[int, float, int], ...]
    """Its gradients: the rank, the time of arrival (below 0 for before the beginning), and the staleness in rounds."""


class RankMemory(Part):
    """Bytes of one worker; null if unknown."""

    rank: int
    resident_before: int | None
    """When the worker had joined, before there was a model."""
    peak_resident: int | None
    live_before: int | None
    """In use then: allocated by the C library and not freed, and shared memory that is resident."""
    peak_live: int | None
    """The highest value at the end of a forward pass or of a step."""
    peak_gpu: int | None
    """Allocated by torch."""
    parameters: int | None
    """Forecast, with buffers; of a model in shards its piece."""
    gradients: int | None
    optimizer: int | None
    host: int | None = None
    """Forecast of memory of the host, or in mapped files, if something is offloaded there."""
    to_host: float | None = None
    """Mean bytes copied there in a step."""
    to_device: float | None = None


class MemorySummary(Part):
    """The peak of memory, in the first run of an arm that ended well, beside the forecast for between steps."""

    seed: int
    zero: int
    """0 if every worker has all of the model."""
    shards: int
    """Workers of a replica."""
    ranks: tuple[RankMemory, ...]


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


class Merge(Part):
    """The contributions to an outer step of learners that never wait."""

    number: int
    """The number of its round."""
    fragment: int | None
    """From 0; null if it was of all."""
    time: float
    """Seconds of the run's training time."""
    given: tuple[tuple[int, float, int], ...]
    """The rank, its share of the weight, and its age: rounds of the fragment since it was contributed."""


class MergesSummary(Part):
    """Merges of learners that never wait; of all runs that count together."""

    count: int
    window_mean: float | None
    """Seconds that a round waited for more learners than it needed; null if there is no such window."""
    window_p95: float | None
    shares: tuple[tuple[int, float, float], ...]
    """By rank: its share of the weight of all merges, and the mean age of its contributions."""
    shown: tuple[Merge, ...]
    """The last ones of the first run."""


class OuterPoint(Part):
    """The figures of one outer step."""

    seconds: float
    """Seconds of the run's training time."""
    fragment: int
    rho: float
    """The cosine of the outer gradient and the one before it, of the same fragment."""
    gain: float
    """The length along the outer gradient, as a multiple of the plain step."""
    transverse: float
    """The length across it, as a multiple of the plain step."""


class OuterSummary(Part):
    """Outer steps of all runs that count together: medians."""

    count: int
    rho: float
    gain: float
    transverse: float
    shown: tuple[OuterPoint, ...]
    """Points of the first run, at most 400."""


class NoisePoint(Part):
    """The noise scale at one measurement."""

    seconds: float
    """Seconds of the run's training time."""
    scale: float
    """In gradients of one worker, smoothed."""


class NoiseSummary(Part):
    """The noise of gradients at the end of all runs that count together, and the consequences for the batch.

    A batch is here a number of gradients of one worker; times `examples`, it is one of examples.
    """

    count: int
    """Measurements."""
    gradients: float
    """Gradients in a mean: the batch."""
    examples: float | None
    """Examples in the batch of one gradient; null if they were not counted."""
    scale: float | None
    """The noise scale, which is the critical batch; null if no signal was seen."""
    diversity: float | None
    """The diversity of the gradients in a mean, over all runs."""
    step_factor: float | None
    """The steps of this batch, as a multiple of the fewest possible."""
    example_factor: float | None
    """The examples, as a multiple of the fewest possible; null without noise, too."""
    gain: float | None
    """The factor by which twice the batch would save steps: from 1 to 2."""
    advice: str
    """A sentence without its full stop."""
    shown: tuple[NoisePoint, ...]
    """Points of the first run, at most 400."""


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
