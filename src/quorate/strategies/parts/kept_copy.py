"""Parameters that a strategy goes on from beside the model's, as others move them while the model computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat


@dataclass(kw_only=True)
class KeptCopy:
    """The copy, and the parameters as the model got them from it. Used under the lock that guards the copy."""

    x: Flat = kept("average")
    shown: Flat | None = kept("drop", default=None)
    """x as it was when the model got it."""

    def show(self, worker: Worker) -> None:
        """Write the copy into the model."""
        worker.parameters = self.x
        self.shown = self.x.clone() if self.shown is None else self.shown.copy_(self.x)

    def take_edits(self, worker: Worker, *, rests: bool = False) -> bool:
        """Add to the copy what the script has written into the model since then; returns whether it has.

        Where neighbours have moved the same numbers meanwhile, sums over all workers are kept. If the worker `rests`,
        the script's numbers count as they stand: the next mean is formed of them.
        """
        if self.shown is None or not worker.replica.take_edits(self.shown, into=self.x):
            return False
        now = worker.parameters
        if rests:
            for x, p, was in zip(self.x.segments(), now.segments(), self.shown.segments(), strict=False):
                x.copy_(torch.where(p == was, x, p))
        self.shown.copy_(now)
        return True
