"""The rows of a run's records, by kind; `records.records` writes them, and readers check them.

Times are seconds of the run's clock: the monotonic clock of the host, or the virtual one. A field whose value and
default are None is left out of the file (except in steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

DIGITS = 6
"""Decimal places of seconds and losses."""


class Row:
    """Base class of rows; each subclass is one kind."""

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """Return the row in the form in which it is written."""
        row: Any = type(self)
        values: dict[str, Any] = {"kind": self.kind}
        for name, may_lack in _fields_of(row):
            value = getattr(self, name)
            if value is not None or not may_lack:
                values[name] = value
        return values


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the names of the fields of a kind of rows, each with whether it is left out where it is None."""
    return tuple((field.name, field.default is None) for field in fields(kind))


@dataclass(frozen=True, kw_only=True, slots=True)
class Start(Row):
    """The first row of every session of a worker."""

    kind = "start"
    rank: int
    size: int
    """Number of workers at the start of the run."""
    host: str
    pid: int
    clock: str
    """"monotonic" or "virtual"."""
    now: float
    """Time on the clock when the row was written."""
    wall: float | None
    """Time of day at `now`, in seconds since 1970; null in a virtual world."""
    device: str
    seed: int | None
    seat: int | None = None
    """The rank in whose place a newcomer (with a rank of `size` or more) was started."""
    server: bool = False
    """Whether it is a separate parameter server (with a rank of `size` or more), and no worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset(Row):
    """The offset of this worker's clock from that of another host, in runs over several hosts."""

    kind = "clock"
    time: float
    """Time on this worker's clock."""
    machine: str
    """A short digest of the machine, or the container; workers with the same one share a clock."""
    reference: int
    """The lowest living rank."""
    offset: float
    """Seconds that the clock of `reference` was ahead of this worker's at `time`."""
    uncertainty: float
    """Greatest error of the offset in seconds; 0 on the machine of `reference`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribute(Row):
    """A call of `distribute`."""

    kind = "distribute"
    optimizer: str
    """Name of its channel."""
    algorithm: str
    """Class of the optimizer."""
    strategy: str | None
    """Name of the strategy, or of the baseline."""
    settings: Mapping[str, Any]
    """Settings of the strategy."""
    replicas_differ: bool
    """Whether replicas differ between steps."""
    parameters: int
    """Number of elements of all parameters."""
    learning_rates: Sequence[float]
    """Learning rate of each parameter group."""
    zero: int | None = None
    """ZeRO stage, where `parallelize` has sharded the model."""
    shards: int | None = None
    """Number of shards of a replica, where `parallelize` has sharded the model."""
    tensor: int | None = None
    """Number of workers that compute layers together on the same batches; only the first of them counts examples."""
    pipeline: Mapping[str, Any] | None = None
    """The `schedule`, `microbatches`, `stages` and `workers` of a model in stages, and the number `worker` of this one
    among them; only the first of them counts examples."""
    foreseen: Mapping[str, int] | None = None
    """Predicted bytes of this worker between steps: parameters (with buffers), gradients, optimizer."""


@dataclass(slots=True)
class Step:
    """One training step of one worker: the parts of its time, and the data that it exchanged.

    `begin` ≤ `arrive` ≤ `end` on the run's clock. From `begin` to `arrive` the worker is busy by itself: `data` +
    `delay` + `compute`. From `arrive`, where it meets other workers, to `end`: `encode` + `wait` + `decode` + `update`
    + other time. Only a comparison of `arrive` of all workers shows how much of `wait` was waiting for others, and how
    much was the transfer of bytes.
    """

    step: int
    """Number of the step of this worker, from 1."""
    optimizer: str
    """Name of the channel; "1" is the first optimizer that the script distributes."""
    round: int
    """Number of updates that this replica has applied."""
    begin: float
    arrive: float
    end: float
    data: float = 0.0
    """Seconds of waiting for the batch of the loader."""
    delay: float = 0.0
    """Seconds of injected imbalance and minimum step time."""
    compute: float = 0.0
    """Seconds of forward and backward passes, and of the script's own code between steps."""
    encode: float = 0.0
    """Seconds of packing after the backward pass."""
    wait: float = 0.0
    """Seconds blocked in the exchange."""
    decode: float = 0.0
    """Seconds of writing back the numbers that were received."""
    update: float = 0.0
    """Seconds in the user's optimizer."""
    loss: float | None = None
    """Loss of this worker, without the factor of a GradScaler; null where it is unknown."""
    examples: int | None = None
    """Number of examples in the batches of this step; null without `quorate.loader`."""
    tokens: int | None = None
    """Number of tokens in the batches of this step; null where the batches do not say."""
    bytes_out: int = 0
    bytes_in: int = 0
    contributors: int = 1
    """Number of workers whose gradient is in the update."""
    staleness: int = 0
    """Number of rounds between the computation and the application of this worker's gradient."""
    bubble: float | None = None
    """Seconds of `wait` for other stages, for a model in stages."""
    stage_out: int | None = None
    """Bytes of `bytes_out` that were sent to other stages, for a model in stages; `stage_in` those of `bytes_in`."""
    stage_in: int | None = None
    pace: float | None = None
    """Seconds of `delay` that extend the step to an injected minimum, and stand for compute."""

    kind: ClassVar[str] = "step"

    def as_json(self) -> dict[str, Any]:
        """Return the row as it is written, with seconds to the microsecond, and with the fields of stages and of a pace
        only where they apply."""
        values: dict[str, Any] = {"kind": "step"}
        names = _OF_STEPS if self.bubble is None else (*_OF_STEPS, *_OF_STAGES)
        for name in names if self.pace is None else (*names, "pace"):
            value = getattr(self, name)
            values[name] = round(value, DIGITS) if type(value) is float else value
        return values


_OF_STAGES = ("bubble", "stage_out", "stage_in")
_OF_STEPS = tuple(field.name for field in fields(Step) if field.name not in (*_OF_STAGES, "pace"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim(Row):
    """A batch that this worker has claimed from a loader with a dynamic share."""

    kind = "claim"
    loader: int
    """Number of the loader in the script, from 1."""
    iteration: int
    """Number of the iteration, from 0."""
    batch: int
    """Number of the batch in the order of the epoch, from 0; the last claim of a worker is beyond the end."""
    of: int | None = None
    """The dead worker that had claimed the batch before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divided(Row):
    """An epoch with a static share that is divided among other workers than those of the start."""

    kind = "divided"
    loader: int
    """Number of the loader in the script, from 1."""
    epoch: int
    members: tuple[int, ...]
    """Their ranks, in the order of their parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch(Row):
    """An epoch that this worker begins to train on."""

    kind = "epoch"
    epoch: int
    """Its number, from 0."""
    batches: int
    """Number of this worker's batches in it; under a dynamic share, if all are equally fast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone(Row):
    """The death of a worker after which the others continue; the lowest living rank writes it."""

    kind = "gone"
    time: float
    """Time at which the others had noticed."""
    rank: int
    host: str
    reason: str
    """Predicate of a sentence about the rank: `was killed by signal 9 (SIGKILL)`."""
    round: int
    """Number of the newest update then."""
    generation: int
    """Number of workers that have died by then."""
    left: int
    """Number of workers that continue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Row):
    """A worker that has joined; the lowest living rank writes it."""

    kind = "joined"
    time: float
    rank: int
    round: int
    """Number of the round from which on it steps."""
    live: int
    """Number of workers that train from then on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log(Row):
    """Values that the script has passed to `quorate.log`."""

    kind = "log"
    step: int
    time: float
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate(Row):
    """A `world.evaluate()` block."""

    kind = "evaluate"
    step: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance(Row):
    """The distance of this replica from the mean of all, at every evaluation, where replicas differ."""

    kind = "distance"
    step: int
    time: float
    optimizer: str
    distance: float
    """Euclidean distance of this replica's parameters from the mean of all."""
    norm: float
    """Euclidean norm of the mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer(Row):
    """An outer step of one fragment. Every worker writes it, with the same numbers."""

    kind = "outer"
    step: int
    time: float
    optimizer: str
    fragment: int
    """Number of the fragment, from 0."""
    norm: float
    """Norm of the outer gradient, which is the mean of the workers' deltas."""
    momentum: float
    """Momentum of the outer optimizer in this step."""
    rho: float | None = None
    """Cosine of the angle between this outer gradient and the one before."""
    smoothed_rho: float | None = None
    gain: float | None = None
    """Length of the step along the outer gradient, in lengths of the plain step (outer rate times outer gradient)."""
    transverse: float | None = None
    """Length of the step across the outer gradient, in lengths of the plain step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow(Row):
    """A round that was applied; the lowest living rank writes it, under strategies with rounds."""

    kind = "round"
    number: int
    time: float
    weight: float
    live: int
    """Number of workers that are counted as training."""
    contributors: Mapping[str, Sequence[Sequence[int]]]
    """By rank: pairs of staleness and number of gradients."""
    settings: Mapping[str, Any] | None = None
    """The settings that are in force from the next round on, where they have changed."""
    why: str | None = None
    """Reason for the change, in words."""
    optimizer: str | None = None
    """Name of its channel."""
    quorum: int | None = None
    """Number of workers that had to call for the round."""
    times: Mapping[str, int] | None = None
    """By rank that was asked: number of its contributions by then."""
    told: Mapping[str, Sequence[Any]] | None = None
    """By rank: payloads of its contributions, where there are any. Those of learners have weights by fragment."""
    alive: int | None = None
    """Number of living workers: those in `live`, and those that have ended."""
    progress: float | None = None
    """Number of synchronous steps that the training has made by then."""
    window: float | None = None
    """Seconds of waiting for more workers than had to call, where rounds have a window."""
    hosts: Sequence[Sequence[int]] | None = None
    """Contributors of each host in the order of their sum, where the sum was formed host by host."""
    settles: bool | None = None
    """Whether the round is that of a pause: it includes everything that was pending."""
    is_last: bool | None = None
    """Whether every worker had ended as well."""
    digest: str | None = None
    """Digest of the bits of the result (for large vectors, of a sample); None where there is no result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied(Row):
    """A look of this worker for complete rounds in which it applied some, under strategies with rounds."""

    kind = "applied"
    optimizer: str
    rests: int
    """Number of pauses before."""
    look: int
    """Number of looks of this worker since the last pause."""
    round: int
    """Number of the newest round that it has applied."""
    is_copy: bool | None = None
    """Whether its replica became a copy of another one, in place of applying the last rounds."""
    source: int | None = None
    """Rank of the worker whose replica was copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gave(Row):
    """A copy of its replica that this worker has sent to a newcomer."""

    kind = "gave"
    optimizer: str
    to: int
    rests: int
    """Number of pauses before; `look` counts as in `Applied`."""
    look: int
    round: int
    """Number of the newest round that it had applied."""
    times: int
    """Number of its contributions by then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served(Row):
    """The work of a server since its row before, or since the beginning of the era; written by the server's worker."""

    kind = "served"
    time: float
    optimizer: str
    seconds: float
    """Duration of this period."""
    busy: float
    """Seconds of the period in which the server handled messages."""
    bytes_in: int
    """Bytes from other workers; pushes and reads of its own worker cross no link, and do not count."""
    bytes_out: int
    steps: int
    """Number of steps that it has made."""
    taken: Sequence[Sequence[int]] | None = None
    """Gradients in steps: pairs of staleness in steps and number. Only a server that decides on the order writes it."""
    counted: Sequence[float] | None = None
    """Total weight of the gradients of each pair, where an equal share of a step of all workers is 1."""
    dropped: Sequence[Sequence[int]] | None = None
    """Gradients that were dropped: pairs of staleness and number."""
    given: Sequence[Sequence[int]] | None = None
    """Triples of rank, number of its gradients in steps, and number of its gradients that were dropped."""


NOT_FINITE, OUTVOTED, NO_WEIGHT, FAR, ABSURD = "not finite", "outvoted", "no weight", "far", "absurd"
"""Reasons to exclude a gradient.
`NOT_FINITE`: it has infinite numbers or NaN. `OUTVOTED`: it differs from that of most of its group, or is impossible in
its code. `NO_WEIGHT`: the rule chose others. `FAR`: its distance from the others is several times theirs from each
other, and a rule for coordinates trims most of it. `ABSURD`: it was out of all proportion to its peers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded(Row):
    """The ranks whose gradients hardly counted in consecutive sums; the lowest living rank writes it, if any."""

    kind = "excluded"
    step: int
    time: float
    """Time at which the last of these sums was complete."""
    optimizer: str
    sums: int
    """Number of these sums."""
    ranks: Sequence[Sequence[int | str]]
    """Triples of rank, reason, and number of sums."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise(Row):
    """The noise of the gradients in one mean; written by the lowest living rank.

    See `core.gradient_noise`. Under a GradScaler all figures are multiplied by the square of its scale.
    """

    kind = "noise"
    step: int
    time: float
    optimizer: str
    gradients: int
    """Number of gradients in the mean."""
    own: float
    """The mean of their squared norms."""
    mean: float
    """The squared norm of their mean."""
    signal: float
    """The squared norm of the gradient without noise, smoothed; below 0 where noise hides it."""
    noise: float
    """The summed variance of one worker's gradient, smoothed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers(Row):
    """The bytes that this worker sent for each layer in the second forward and backward pass of the run; written once,
    where several workers compute layers together."""

    kind = "layers"
    step: int
    time: float
    optimizer: str
    sent: Mapping[str, int]
    """Bytes by the layer's name in the model; layers that send nothing are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class End(Row):
    """The last row of a worker that ends normally."""

    kind = "end"
    time: float
    steps: int
    peak_bytes: int | None
    """Greatest resident memory; null in a virtual world."""
