"""What stands in the schema of `summary.json` about rounds, lanes and faults, and what all of its parts are."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Unknown fields are refused."""

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

    Seconds since the beginning of what is shown.
    """

    rank: int
    spans: tuple[tuple[str, float, float], ...]


class Mark(Part):
    """One round in the timeline. Seconds since the beginning of what is shown."""

    number: int
    time: float
    """When the first replica had applied it."""
    given: tuple[tuple[int, float, int], ...]
    """Its gradients: the rank, when it had come (below 0 for before the beginning), and the staleness in rounds."""


class RankMemory(Part):
    """Bytes of one worker; null is what was not known."""

    rank: int
    resident_before: int | None
    """When it had joined, before there was a model."""
    peak_resident: int | None
    live_before: int | None
    """In use then: what was asked of the C library and not given back, and shared memory that is resident."""
    peak_live: int | None
    """The most that was seen at the end of a forward pass or of a step."""
    peak_gpu: int | None
    """Allocated by torch."""
    parameters: int | None
    """Foreseen, with buffers; of a model in shards its piece."""
    gradients: int | None
    optimizer: int | None
    host: int | None = None
    """Foreseen in memory of the host, or in mapped files, where something is offloaded there."""
    to_host: float | None = None
    """Copied there in a step, in the mean."""
    to_device: float | None = None


class MemorySummary(Part):
    """What memory was taken, in the first run of an arm that ended well, beside what was foreseen between steps."""

    seed: int
    zero: int
    """0 where every worker has all of the model."""
    shards: int
    """Workers of a replica."""
    ranks: tuple[RankMemory, ...]


class Change(Part):
    """Settings of rounds that changed on the way."""

    seed: int
    number: int
    """The first round under the new ones."""
    settings: dict[str, object]
    """All that is not as it was at the start."""
    why: str
    """In words."""


class RoundsSummary(Part):
    """What the updates were made of, under a strategy with a quorum.

    Counts are of all runs that count together, of rounds formed after the warm-up and before the first worker ended;
    estimates are by seed.
    """

    count: Estimate
    """In the whole run."""
    per_second: Estimate | None
    """Of training time."""
    contributors: tuple[int, ...]
    """Rounds by how many workers' gradients were in them: of none, of 1, 2 ..."""
    contributors_mean: float
    live: tuple[int, int]
    """Workers that were counted in a round: the fewest, and the most."""
    fresh_share: Estimate
    """Of the gradients that were applied, those computed on the newest parameters."""
    staleness: tuple[int, ...]
    """Gradients by staleness: of 0 rounds, of 1, 2 ..."""
    staleness_mean: float
    effective_batch: Estimate | None
    """Mean examples in a round; null where examples were not counted."""
    rank_shares: tuple[float, ...]
    """Of the gradients that were applied, by rank."""
    waiting_share: Estimate | None
    """Of the time of steps, what was waiting for others."""
    waiting_in_step: Estimate | None
    """What it would have been had everybody waited for everybody in every step: an estimate from the times at work."""
    changes: tuple[Change, ...] = ()
    """Run by run, in order."""


class Merge(Part):
    """What an outer step of learners that never wait was made of."""

    number: int
    """Of its round."""
    fragment: int | None
    """From 0; null where it was of all."""
    time: float
    """Seconds of the run's training time."""
    given: tuple[tuple[int, float, int], ...]
    """The rank, its share of the weight, and its age: rounds of the fragment that had gone by without it."""


class MergesSummary(Part):
    """Merges of learners that never wait; of all runs that count together."""

    count: int
    window_mean: float | None
    """Seconds that a round waited for more learners than it needed; null where there is no such window."""
    window_p95: float | None
    shares: tuple[tuple[int, float, float], ...]
    """By rank: its share of the weight of all merges, and the mean age of what was merged of it."""
    shown: tuple[Merge, ...]
    """The last ones of the first run."""


class OuterPoint(Part):
    """What an outer step made of its outer gradient."""

    seconds: float
    """Of the run's training time."""
    fragment: int
    rho: float
    """The cosine of the outer gradient and the one before it, of the same fragment."""
    gain: float
    """How many times the plain step it went along the outer gradient."""
    transverse: float
    """How far it went across, in lengths of the plain step."""


class OuterSummary(Part):
    """Outer steps of all runs that count together: medians."""

    count: int
    rho: float
    gain: float
    transverse: float
    shown: tuple[OuterPoint, ...]
    """Of the first run, at most 400."""


class NoisePoint(Part):
    """The noise scale at one measurement."""

    seconds: float
    """Of the run's training time."""
    scale: float
    """In gradients of one worker, smoothed."""


class NoiseSummary(Part):
    """How noisy gradients were at the end of all runs that count together, and what follows for the batch.

    A batch is here a number of gradients of one worker; times `examples`, it is one of examples.
    """

    count: int
    """Measurements."""
    gradients: float
    """In a mean: the batch."""
    examples: float | None
    """In the batch of one gradient; null where they were not counted."""
    scale: float | None
    """The noise scale, which is the critical batch; null where no signal was to be seen."""
    diversity: float | None
    """Of the gradients in a mean, over all runs."""
    step_factor: float | None
    """How many times the fewest steps possible this batch takes."""
    example_factor: float | None
    """How many times the fewest examples; null without noise, too."""
    gain: float | None
    """How many times fewer steps twice the batch would take: from 1 to 2."""
    advice: str
    """A sentence without its full stop."""
    shown: tuple[NoisePoint, ...]
    """Of the first run, at most 400."""


class Server(Part):
    """A worker on which a part of the parameters lies."""

    rank: int
    busy_share: float | None
    """Of the time between rests, that in which it handled messages; null in a virtual world, where that takes none."""
    bytes_in: float
    """From other workers, a second."""
    bytes_out: float


class ServersSummary(Part):
    """What servers did, in all runs that count together."""

    gradients: int
    """That came: in steps, or dropped."""
    steps: int
    staleness: tuple[int, ...]
    """Gradients in steps, by the steps that had been made since the parameters that they are of: 0, 1, 2 ..."""
    staleness_mean: float
    weights: tuple[float, ...]
    """What they counted in the mean, likewise, where an equal share of a step of all workers is 1."""
    dropped_share: float
    """Of the gradients."""
    scaled_share: float
    """Of the gradients, those in steps that counted less than an equal share."""
    ranks: tuple[tuple[int, int, int], ...]
    """By worker: its rank, its gradients in steps, and those that were dropped."""
    servers: tuple[Server, ...]
    """By rank."""


class GoodputSummary(Part):
    """What failures have left of the steps that could have been made; by seed, steps of single workers."""

    share: Estimate
    """Useful steps, of the possible ones."""
    useful: Estimate
    """Steps whose work is in the model in the end."""
    lost: Estimate
    """Steps that were made, and came to nothing."""
    possible: Estimate
    """Workers at the start, times seconds, by those of an undisturbed step."""
    step_seconds: Estimate
    """Of an undisturbed step."""


class Fault(Part):
    """A worker that died, and the others went on."""

    seed: int
    rank: int
    why: str
    """In words: `was killed by signal 9 (SIGKILL)`."""
    seconds: float
    """When the others had noticed, of the run's training time."""
    round: int
    """The newest update then."""
    standstill: float | None
    """Seconds: the longest time between two steps of one of the others around it."""
    left: int
    """Workers that went on."""


class Joined(Part):
    """A worker that joined the run under way."""

    seed: int
    rank: int
    replaced: int | None
    """In place of which one that had died it was started; null where it was asked for."""
    seconds: float
    """From when on it stepped, of the run's training time."""
    round: int
    """The one that let it in."""
    waited: float | None
    """Seconds from the moment when that death was noticed, or else from its `quorate.join()`, until then."""
    live: int
    """Workers that trained from then on."""
