"""The part of a worker in the means of others, after it has paused or ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorate.core.means import Mean
from quorate.core.vectors import Flat


@dataclass(frozen=True)
class Shadow:
    """The part of this worker in means in which it takes part without stepping, as it has paused or ended."""

    contribution: Callable[[], tuple[tuple[Flat, float] | None, int | None]]
    """Returns a vector and its weight, or None; and the checksum of parameters that the script has edited since the
    newest mean, if this worker has made no step since."""
    apply: Callable[[Mean], None]
    """Takes the mean; not called if no worker contributed."""
    synchronized: Callable[[], None]
    """Called when all workers have paused or ended."""
    settle: Callable[[float], None] = lambda weight: None
    """Called after every mean of parameters, with the weight of this worker, for tables beside them."""
