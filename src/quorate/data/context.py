"""The state on which the data of one worker's training depends, besides its script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from quorate.core.clients import ClientTerms
from quorate.core.redundancy import Redundancy
from quorate.data.limit import Limit
from quorate.data.step_division import StepDivision
from quorate.records.records import Recorder
from quorate.records.rows import Row


class Versioned(Protocol):
    """A worker whose batches follow from its rounds, as data sees it."""

    @property
    def version(self) -> int:
        """The newest round that the worker has applied."""


class EndsLoops(Protocol):
    """The request of a worker to end the loops of all, as data sees it."""

    def is_over(self) -> bool:
        """Return whether training loops are to end."""


@dataclass
class DataContext:
    """The data context of one worker."""

    share: str | None = None
    """The launcher's choice in place of the script's `share`, for loaders that shuffle."""
    seed: int = 0
    """The seed of the run."""
    replaced_rank: int | None = None
    """The rank in whose place this worker has joined."""
    deals: tuple[int, int] | None = None
    """The number of shares, and this worker's share, where several workers have the same; None: one for each worker."""
    redundancy: Redundancy = field(default_factory=Redundancy)
    """The redundancy with which workers compute the same batches."""
    versioned: Versioned | None = None
    """Set where the batch of a step follows from its round."""
    repeats: bool = False
    """Whether another worker counts the examples that this one has as well."""
    division: StepDivision | None = None
    """The division of steps among the workers that live, where the batch is kept after a death."""
    client_terms: ClientTerms | None = None
    """Terms of the strategy by which an optimizer was distributed, where it knows clients."""
    bypassed: str | None = None
    """The name of such a strategy that a single worker does without."""
    nobody_waits: bool = False
    """Whether an optimizer was distributed by a strategy that does not wait for all workers in each step."""
    needs_equal_shares: str | None = None
    """The name of the baseline that needs equal numbers of batches."""
    deals_out: bool = False
    """Whether a loader gives each batch to the worker that asks first."""
    made: int = 0
    """Number of loaders so far."""
    is_of_script: bool = False
    """Whether the script assigns batches to workers itself, as one that is written for torch's DDP."""
    files: int = 0
    """Number of datasets so far whose files one worker reads for all."""
    recorder: Recorder | None = None
    """The records of the worker, if it keeps any."""
    is_evaluating: bool = False
    """Whether the worker is inside `world.evaluate()`."""
    early_end: EndsLoops | None = None
    """Set in a world, whose workers may request the end of all loops."""
    limit: Limit | None = None
    """The end of the training by time."""
    boundaries: list[Callable[[], object]] = field(default_factory=list)
    """Called, in order, when a training loop requests the next batch from a loader: the step before has ended."""
    meetings: list[Callable[[], object]] = field(default_factory=list)
    """Called, in order, when the script has called `world.mean`, or another call that brings workers together."""
    at_pause: list[Callable[[], object]] = field(default_factory=list)
    """Called, in order, when a loader that ends for all together has returned its last batch before the others."""

    def record(self, row: Row) -> None:
        """Keep a row of the records, if there are any."""
        if self.recorder is not None:
            self.recorder.hold(row)

    def with_batches_of_their_own(self, workers: float, size: int) -> float:
        """Return how many of `workers` among `size` have batches of their own in a step, as others share theirs."""
        if self.deals is not None:
            return workers * self.deals[0] / size
        return workers * (self.redundancy.groups or size) / size / self.redundancy.batches
