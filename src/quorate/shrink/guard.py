"""The largest rise of a loss that a smaller model may cost; a change that costs more is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quorate.checkpoint.participants import Distributed
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.shrink.snapshot import Snapshot
from quorate.train.loop import Loop
from quorate.train.pauses import backward_is_local
from quorate.wire.current import Place

Evaluate = Callable[[], float | Tensor]


@dataclass(frozen=True)
class Guard:
    """A limit on the loss that `evaluate` returns; without a `rise` everything stays."""

    evaluate: Evaluate | None = None
    rise: float | None = None
    """The largest relative rise."""

    def __post_init__(self) -> None:
        if self.rise is not None and self.evaluate is None:
            raise ConfigurationError("guard limits the rise of a loss; pass evaluate, which returns it")
        if self.rise is not None and not self.rise >= 0:
            raise ConfigurationError(f"guard is {self.rise}; it must be a relative rise of the loss, at least 0")

    def allows(self, before: float | None, after: float | None) -> bool:
        """Return whether the loss may rise so much; a loss that is not a number is too high."""
        if self.rise is None or before is None:
            return True
        return after is not None and after <= before + self.rise * abs(before)

    def loss(self, place: Place, loop: Loop | None) -> float | None:
        """Return the mean of the losses of all workers, which are paused; None without `evaluate`."""
        if self.evaluate is None:
            return None
        with backward_is_local(place), torch.no_grad():
            own = torch.as_tensor(self.evaluate()).detach().double().cpu().reshape(1)
        return float(own if loop is None else loop.worker.means.of_number(own))

    def stays(
        self, place: Place, entry: Distributed, loop: Loop | None, change: Callable[[], object], words: str
    ) -> bool:
        """Make a change of the layers, while all workers are paused with equal replicas, and return whether it stays.

        Otherwise model and optimizer are put back, and a line says so in `words`. Cost: with a rise two evaluations,
        and a copy of the parameters and of the optimizer's state.
        """
        if self.rise is None:
            change()
            return True
        before = self.loss(place, loop)
        snapshot = Snapshot(entry.model, entry.optimizer, None if loop is None else loop.replica.momentum)
        change()
        after = self.loss(place, loop)
        if self.allows(before, after):
            return True
        snapshot.restore()
        if place.wire.rank == place.wire.alive[0]:
            rise = f"from {before:.4g} to {after:.4g}, by more than guard={self.rise:g}"
            tell(f"quorate: {words} is undone after step {entry.step}: the loss has risen {rise}\n")
        return False
