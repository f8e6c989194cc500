"""Batches that grow with the noise of gradients: `batch="auto"`.

A batch well below the critical one (the noise scale; McCandlish et al. 2018, arXiv 1812.06162) can be doubled, and half
the steps bring the same; the noise scale grows as the loss falls. So between two epochs each worker's batch is doubled
if that of all workers then is no larger than the critical batch, beyond chance. It never shrinks. What Smith et al.
2018 (arXiv 1711.00489) do by a table of epochs is done by measurement here.

Cost: the measurements (see `observe.gradient_noise`), and a word with the board for each epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from quorate.core.errors import ConfigurationError, WireTimeout, unknown
from quorate.core.gradient_noise import Squares, scale_of
from quorate.core.telling import tell
from quorate.data.assignment import DYNAMIC, Share
from quorate.data.context import data_context
from quorate.wire.current import Place

BATCHES = ("fixed", "auto")
FEW, MOST = 4, 100
"""Measurements that are needed since the batch was changed last, and that are kept."""
LEAST_BATCHES = 8
"""In an epoch, unless a larger batch is allowed."""
_PATIENCE = 600.0
"""Seconds for which the first worker's decision is waited for."""


@dataclass
class Growth:
    """What one worker knows of it; `growth(place)` gives it."""

    is_wanted: bool = False
    """Whether a loader asks."""
    known: deque[Squares] = field(default_factory=lambda: deque(maxlen=MOST))
    """Of gradients of a worker, since the batch was changed last; only the first worker measures."""
    followers: list[Callable[[float], None]] = field(default_factory=list)
    """Told by how many times a batch has grown."""

    def measured(self, found: Squares) -> None:
        """One more."""
        self.known.append(found)

    @property
    def scale(self) -> float | None:
        """What the noise scale is at least, but for chance, in gradients of a worker; None where nothing is known.

        The signal is taken for a standard error more than its mean.
        """
        if len(self.known) < FEW:
            return None
        signals = [one.signal for one in self.known]
        most = fmean(signals) + stdev(signals) / math.sqrt(len(signals))
        return scale_of(most, fmean(one.noise for one in self.known))

    def grown(self, size: int, workers: int, most: int) -> int:
        """The batch of a worker for the next epoch, after batches of `size` on so many workers; `most` is the limit."""
        scale = self.scale
        return 2 * size if scale is not None and scale >= 2 * workers and 2 * size <= most else size

    def changed(self, times: float) -> None:
        """Batches are so many times as large from now on: what was measured is of others."""
        self.known.clear()
        for follower in tuple(self.followers):
            follower(times)


def growth(place: Place) -> Growth:
    """That of the worker."""
    return place.context(Growth)


def growing(place: Place, number: int, batch: str, most: Any, share: Share, size: int, examples: int) -> Growing | None:
    """What `shard` was given for loader `number`; None where batches stay as they are.

    Raises `ConfigurationError` for an unknown `batch`, a limit below the batch, and where workers do not share epochs.
    """
    if batch not in BATCHES:
        raise unknown("batch", str(batch), BATCHES)
    if batch == "fixed":
        if most is not None:
            raise ConfigurationError('most_batch_size is the limit of batch="auto"; leave it out, or give batch="auto"')
        return None
    if share.kind == DYNAMIC or data_context(place).nobody_waits:
        raise ConfigurationError(
            'batch="auto" changes batches between two epochs, for which the workers agree; it goes with share="static" '
            "and a strategy in which all workers meet in each step, such as all-reduce"
        )
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < size):
        raise ConfigurationError(f"most_batch_size is a whole number, at least the batch_size of {size}, not {most!r}")
    growth(place).is_wanted = True
    return Growing(place, number, max(size, share.length(examples) // LEAST_BATCHES) if most is None else most)


@dataclass(frozen=True)
class Growing:
    """Of one loader: `number` is its own among the worker's."""

    place: Place
    number: int
    most: int

    def size_in(self, epoch: int, size: int) -> int:
        """The batch in an epoch that begins, the same on all workers: the first that is left decides.

        Raises `PeerFailed`, and `WireTimeout` where no decision comes.
        """
        wire, key = self.place.wire, f"batch size/{self.number}/{epoch}"
        until = wire.clock.now() + _PATIENCE
        while (told := wire.board.get(key)) is None:
            alive = wire.alive
            if wire.rank == alive[0]:
                known = growth(self.place)
                found = known.grown(size, len(alive), self.most)
                if wire.board.swap(key, None, b"%d" % found) and found != size:
                    self._tell(epoch, found, len(alive), (known.scale or 0.0) * size)
            elif wire.clock.now() > until:
                raise WireTimeout(f"rank {alive[0]} has not begun epoch {epoch} for {_PATIENCE:g} s")
            else:
                with suppress(WireTimeout):
                    wire.board.wait([key], 1.0)
        return int(told)

    def _tell(self, epoch: int, size: int, workers: int, critical: float) -> None:
        tell(
            f"quorate: from epoch {epoch} on batches of {size} examples ({size * workers} of all workers); "
            f"the critical batch is {critical:.0f} at least\n"
        )
