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
    """Seconds of injected imbalance and pace."""
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
    """Number of examples in the batches of this step; null without a loader of `quorate.shard`."""
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
    """Seconds of `delay` that slow the step to an injected pace, and stand for compute."""

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
class End(Row):
    """The last row of a worker that ends normally."""

    kind = "end"
    time: float
    steps: int
    peak_bytes: int | None
    """Greatest resident memory; null in a virtual world."""
