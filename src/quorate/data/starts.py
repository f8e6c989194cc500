"""Notices about loaders that begin again where they should go on: one that is made in each epoch, in place of once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorate.core.telling import tell
from quorate.data.assignment import Share
from quorate.data.consumption import consumed
from quorate.wire.current import Place


@dataclass(frozen=True)
class FirstPass:
    """The first pass of a loader that was trained on."""

    dataset: Callable[[], object]
    order: tuple[int, bool, int]
    """Its epoch, and what its order follows from: seed and `shuffle`."""
    optimizers: int
    """The number of optimizers that were distributed before it."""


@dataclass
class Starts:
    """The first passes of one worker's loaders, in order."""

    begun: list[FirstPass] = field(default_factory=list)
    lacks_position: bool = False
    """Whether a loader has begun without a position, where a checkpoint has that of another one."""
    _is_said: bool = False

    def begins(self, place: Place, dataset: Any, share: Share, epoch: int, made_after: int) -> None:
        """Note the first pass of a loader that was made after so many others had begun theirs.

        A line says once if one of these had the same epoch of the same data, and no optimizer was distributed since.
        """
        optimizers, order = consumed(place).optimizers, (epoch, share.shuffle, share.seed)
        earlier = (first for first in self.begun[:made_after] if first.order == order)
        is_again = any(first.dataset() is dataset and first.optimizers == optimizers for first in earlier)
        if is_again and share.shuffle and place.wire.rank == 0 and not self._is_said:
            self._is_said = True
            tell(
                f"quorate: quorate.loader was called again for the same data, so this is epoch {epoch} again, in the "
                "same order. Call it once, before the loop, or call set_epoch(epoch) of each loader\n"
            )
        try:
            reference: Callable[[], object] = weakref.ref(dataset)
        except TypeError:  # a list, which cannot be recognized later
            return
        self.begun.append(FirstPass(reference, order, optimizers))
