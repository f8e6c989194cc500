"""Parameters that a strategy goes on from beside the model's, as others move them while the model computes."""

from __future__ import annotations

from dataclasses import dataclass

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

    def take_edits(self, worker: Worker) -> None:
        """What the script has written into the model since then is in the copy from now on."""
        if self.shown is not None and worker.replica.take_edits(self.shown, into=self.x):
            self.shown.copy_(worker.parameters)
