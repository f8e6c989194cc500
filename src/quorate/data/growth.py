"""Batches that grow with the noise of gradients: `batch="auto"`.

A batch well below the critical one (the noise scale; McCandlish et al. 2018, arXiv 1812.06162) can be doubled, and half
the steps achieve the same. The noise scale grows as the loss falls. So between two epochs each worker's batch is
doubled if the batch of all workers is then no larger than the critical one, with statistical confidence. It never
shrinks. Smith et al. 2018 (arXiv 1711.00489) use a table of epochs instead of measurements.

Cost: the measurements (see `observe.gradient_noise`), and a request to the board for each epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, WireTimeout, unknown
from quorate.core.gradient_noise import Squares, scale_of
from quorate.core.telling import tell
from quorate.data.assignment import DYNAMIC, Share
from quorate.data.context import DataContext

BATCHES = ("fixed", "auto")
FEW, MOST = 4, 100
"""Measurements needed since the last change of the batch, and measurements kept."""
LEAST_BATCHES = 8
"""Batches in an epoch, unless a larger batch is allowed."""
_PATIENCE = 600.0
"""Seconds to wait for the first worker's decision."""


@dataclass
class Growth:
    """One worker's measurements."""

    is_wanted: bool = False
    """Whether a loader needs measurements."""
    squares: deque[Squares] = field(default_factory=lambda: deque(maxlen=MOST))
    """Measurements of a worker's gradients, since the last change of the batch; only the first worker measures."""
    followers: list[Callable[[float], None]] = field(default_factory=list)
    """Called with the factor by which a batch has grown."""

    def measured(self, squares: Squares) -> None:
        """Add one measurement."""
        self.squares.append(squares)

    @property
    def scale(self) -> float | None:
        """A lower confidence limit of the noise scale, in gradients of a worker; None without enough measurements. The
        signal is assumed to be a standard error above its mean."""
        if len(self.squares) < FEW:
            return None
        signals = [measurement.signal for measurement in self.squares]
        most = fmean(signals) + stdev(signals) / math.sqrt(len(signals))
        return scale_of(most, fmean(measurement.noise for measurement in self.squares))

    def grown(self, size: int, workers: int, most: int) -> int:
        """Return a worker's batch for the next epoch, after batches of `size` on `workers`; `most` is the limit."""
        scale = self.scale
        return 2 * size if scale is not None and scale >= 2 * workers and 2 * size <= most else size

    def changed(self, times: float) -> None:
        """Begin new measurements, as batches are so many times as large from now on."""
        self.squares.clear()
        for follower in tuple(self.followers):
            follower(times)


def growing(
    wire: Wire,
    context: DataContext,
    growth: Growth,
    number: int,
    batch: str,
    most: Any,
    share: Share,
    size: int,
    examples: int,
) -> Growing | None:
    """Return the growth of loader `number`; None where batches keep their size. Raises `ConfigurationError` for an
    unknown `batch`, a limit below the batch, and where workers do not share epochs."""
    if batch not in BATCHES:
        raise unknown("batch", str(batch), BATCHES)
    if batch == "fixed":
        if most is not None:
            raise ConfigurationError('max_batch_size is the limit of batch="auto"; leave it out, or give batch="auto"')
        return None
    if share.kind == DYNAMIC or context.nobody_waits:
        raise ConfigurationError(
            'batch="auto" changes batches between two epochs, for which the workers agree; it goes with share="static" '
            "and a strategy in which all workers meet in each step, such as all-reduce"
        )
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < size):
        raise ConfigurationError(f"max_batch_size is a whole number, at least the batch_size of {size}, not {most!r}")
    growth.is_wanted = True
    return Growing(wire, growth, number, max(size, share.length(examples) // LEAST_BATCHES) if most is None else most)


@dataclass(frozen=True)
class Growing:
    """The growth of one loader, which is the worker's loader `number`."""

    wire: Wire
    growth: Growth
    number: int
    most: int

    def size_in(self, epoch: int, size: int) -> int:
        """Return the batch in an epoch that begins, the same on all workers: the first live worker decides. Raises
        `PeerFailed`, and `WireTimeout` if no decision is made."""
        wire, key = self.wire, f"batch size/{self.number}/{epoch}"
        until = wire.clock.now() + _PATIENCE
        while (decision := wire.board.get(key)) is None:
            alive = wire.alive
            if wire.rank == alive[0]:
                measurements = self.growth
                decided = measurements.grown(size, len(alive), self.most)
                if wire.board.swap(key, None, b"%d" % decided) and decided != size:
                    self._tell(epoch, decided, len(alive), (measurements.scale or 0.0) * size)
            elif wire.clock.now() > until:
                raise WireTimeout(f"rank {alive[0]} has not begun epoch {epoch} for {_PATIENCE:g} s")
            else:
                with suppress(WireTimeout):
                    wire.board.wait([key], 1.0)
        return int(decision)

    def _tell(self, epoch: int, size: int, workers: int, critical: float) -> None:
        tell(
            f"quorate: from epoch {epoch} on batches of {size} examples ({size * workers} of all workers); "
            f"the critical batch is {critical:.0f} at least\n"
        )
