"""The rows of a run's records, by kind: what `records.records` writes, and readers check.

Times are seconds of the run's clock: the monotonic clock of the host, or the virtual one. A field whose
default is None is left out of the file where it has it (but for steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

DIGITS = 6
"""Behind the point, of seconds and losses."""


class Row:
    """Of one kind."""

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """The row as it is in the file."""
        of: Any = self
        said = {field.name: getattr(self, field.name) for field in fields(of)}
        left_out = {field.name for field in fields(of) if field.default is None and said[field.name] is None}
        return {"kind": self.kind, **{name: value for name, value in said.items() if name not in left_out}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Start(Row):
    """The first row of every session of a worker."""

    kind = "start"
    rank: int
    size: int
    """Workers at the start of the run."""
    host: str
    pid: int
    clock: str
    """"monotonic" or "virtual"."""
    now: float
    """The clock when the row was written."""
    wall: float | None
    """The time of day then, in seconds since 1970; null in a virtual world."""
    device: str
    seed: int | None
    seat: int | None = None
    """Of a worker that joins (its rank is `size` or more): the rank in whose place it was started."""
    server: bool = False
    """Whether it is no worker, but keeps parameters for them (its rank is `size` or more)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset(Row):
    """How far this worker's clock is from that of another host, in runs over several hosts."""

    kind = "clock"
    time: float
    """On this worker's clock."""
    machine: str
    """A short digest of the machine, or the container; workers with the same one share a clock."""
    reference: int
    """The lowest rank that was alive."""
    offset: float
    """The reference's clock showed this worker's `time` plus so many seconds."""
    uncertainty: float
    """Seconds by which the offset is wrong at most; 0 on the reference's own machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribute(Row):
    """An optimizer was distributed."""

    kind = "distribute"
    optimizer: str
    """The name of its channel."""
    algorithm: str
    """Its class."""
    strategy: str | None
    """Or baseline."""
    settings: Mapping[str, Any]
    """Of the strategy."""
    replicas_differ: bool
    """Whether replicas differ between steps."""
    parameters: int
    """How many numbers."""
    learning_rates: Sequence[float]
    """By parameter group."""
    zero: int | None = None
    """Of a model that `parallelize` has spread."""
    shards: int | None = None
    """Likewise: how many shards a replica is in."""
    tensor: int | None = None
    """Likewise: workers that compute layers together, on the same batches; those behind the first count no examples."""
    pipeline: Mapping[str, Any] | None = None
    """Of a model in stages: its `schedule`, `microbatches`, `stages`, `workers`, and the `worker` that this one is of
    them; those behind the first count no examples."""
    foreseen: Mapping[str, int] | None = None
    """Bytes that this worker holds between steps: parameters (with buffers), gradients, optimizer."""


@dataclass(slots=True)
class Step:
    """One training step of one worker: where its time went, and what it exchanged.

    `begin` ≤ `arrive` ≤ `end` on the run's clock. From `begin` to `arrive` the worker was busy by itself: `data` +
    `delay` + `compute`. From `arrive`, when it came to the meeting point, to `end`: `encode` + `wait` + `decode` +
    `update` + what is left. How much of `wait` was waiting for others and how much was moving bytes is seen only by
    holding the `arrive` of all workers side by side.
    """

    step: int
    """Counts this worker's steps from 1."""
    optimizer: str
    """The name of the channel, where a script distributes several; "1" is the first."""
    round: int
    """How many updates this replica has applied."""
    begin: float
    arrive: float
    end: float
    data: float = 0.0
    """Seconds until the loader had the batch."""
    delay: float = 0.0
    """Seconds of injected imbalance and pace."""
    compute: float = 0.0
    """Seconds of forward and backward, and of the script's own code between steps."""
    encode: float = 0.0
    """Seconds of packing after the backward pass."""
    wait: float = 0.0
    """Seconds blocked in the exchange."""
    decode: float = 0.0
    """Seconds of writing back what arrived."""
    update: float = 0.0
    """Seconds in the user's optimizer."""
    loss: float | None = None
    """This worker's own, as before a GradScaler; null where it is not known."""
    examples: int | None = None
    """In this step's batches; null without a loader of `quorate.shard`."""
    tokens: int | None = None
    """In this step's batches; null where they do not say."""
    bytes_out: int = 0
    bytes_in: int = 0
    contributors: int = 1
    """Workers whose gradient is in the update."""
    staleness: int = 0
    """Rounds between computing and applying this worker's gradient."""
    bubble: float | None = None
    """Of a model in stages: seconds of `wait` in which this worker waited for other stages."""
    stage_out: int | None = None
    """Likewise: bytes of `bytes_out` that went to other stages."""
    stage_in: int | None = None
    pace: float | None = None
    """Where a pace is injected: seconds of `delay` that brought the step to it, and stand for compute."""

    kind: ClassVar[str] = "step"

    def as_json(self) -> dict[str, Any]:
        """The row as it is in the file, seconds to the microsecond; what is of stages, or of a pace, only where there
        are some."""
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
    """This worker has asked for a batch of a loader with a dynamic share, and got it."""

    kind = "claim"
    loader: int
    """Counts the loaders of the script from 1."""
    iteration: int
    """From 0."""
    batch: int
    """In the order of the epoch, from 0; the worker's last one is behind the end."""
    of: int | None = None
    """The worker that had claimed it before, and died."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone(Row):
    """A worker has died, and the others go on; written by the first rank that is left."""

    kind = "gone"
    time: float
    """When the others had noticed."""
    rank: int
    host: str
    reason: str
    """As a sentence goes on after the rank: `was killed by signal 9 (SIGKILL)`."""
    round: int
    """The newest update then."""
    generation: int
    """How many have died by then."""
    left: int
    """Workers that go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Row):
    """A worker has joined; written by the first rank that is left."""

    kind = "joined"
    time: float
    rank: int
    round: int
    """It steps from that one on."""
    live: int
    """Workers that train from then on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log(Row):
    """What the script gave to `quorate.log`."""

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
    """Where replicas differ, at every evaluation."""

    kind = "distance"
    step: int
    time: float
    optimizer: str
    distance: float
    """Of this replica's parameters from the mean of all, Euclidean."""
    norm: float
    """Of the mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer(Row):
    """An outer step was made, of one fragment; every worker writes it, and all write the same numbers."""

    kind = "outer"
    step: int
    time: float
    optimizer: str
    fragment: int
    """Its number, from 0."""
    norm: float
    """Of the outer gradient: how far the workers went in the mean."""
    momentum: float
    """Of the outer optimizer in this step."""
    rho: float | None = None
    """The cosine of this outer gradient and the one before."""
    smoothed_rho: float | None = None
    gain: float | None = None
    """How many times the plain step (outer rate times outer gradient) the step went along the outer gradient."""
    transverse: float | None = None
    """How far it went across, in lengths of the plain step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class End(Row):
    """The worker leaves."""

    kind = "end"
    time: float
    steps: int
    peak_bytes: int | None
    """Resident memory at its greatest; null in a virtual world."""
