"""What the data of one worker's training depends on, beside what a script says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quorate.core.clients import ClientTerms
from quorate.core.redundancy import Redundancy
from quorate.data.limit import Limit
from quorate.records.rows import Claim
from quorate.wire.current import Place


@dataclass
class DataContext:
    """One of each worker; `data_context(place)` gives it."""

    share: str | None = None
    """What the launcher says instead of the script's `share`, for loaders that shuffle."""
    seed: int = 0
    """The run's."""
    seat: int | None = None
    """The rank whose place a worker has that joined."""
    deals: tuple[int, int] | None = None
    """Into how many shares data is dealt out, and which is this worker's, where several workers have the same one;
    None: as many as there are workers."""
    redundancy: Redundancy = field(default_factory=Redundancy)
    """How workers compute the same batches of what they train on."""
    round_now: Callable[[], int] | None = None
    """The newest round that the worker has applied, where the batch of a step follows from its round."""
    repeats: bool = False
    """Whether another worker counts the examples that this one has as well."""
    client_terms: ClientTerms | None = None
    """Of the strategy that an optimizer was distributed by, where it knows clients."""
    bypassed: str | None = None
    """The name of such a strategy that a worker alone does without."""
    nobody_waits: bool = False
    """Whether an optimizer was distributed by a strategy that does not wait for all workers in each step."""
    needs_equal_shares: str | None = None
    """The name of the baseline that cannot do with unequal numbers of batches."""
    deals_out: bool = False
    """Whether a loader gives each batch to the worker that asks first."""
    made: int = 0
    """Loaders, so far."""
    files: int = 0
    """Datasets of files that one worker reads for all, so far."""
    claimed: Callable[[Claim], None] = lambda row: None
    """Told of every batch that the worker has asked for."""
    is_evaluating: bool = False
    """Whether the worker is inside `world.evaluate()`."""
    is_over: Callable[[], bool] = lambda: False
    """Whether loops that train are to end, as a worker has said so."""
    limit: Limit | None = None
    """The end of the training by time."""
    boundaries: list[Callable[[], object]] = field(default_factory=list)
    """Called, in order, when a training loop asks a loader for its next batch: the step before has ended."""
    meetings: list[Callable[[], object]] = field(default_factory=list)
    """Called, in order, when the script has called `world.mean`, or another of these that bring workers together."""
    rests: list[Callable[[], object]] = field(default_factory=list)
    """Called, in order, when a loader that ends for all together has given its last batch before the others have."""

    def with_batches_of_their_own(self, workers: float, size: int) -> float:
        """As how many such so many of `size` workers count, in each step of the optimizer."""
        if self.deals is not None:
            return workers * self.deals[0] / size
        return workers * (self.redundancy.groups or size) / size / self.redundancy.batches


def data_context(place: Place) -> DataContext:
    """That of the worker."""
    return place.context(DataContext)
