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
    is_edited: bool = kept("drop", default=False)
    """Whether this worker rests, and the script has written into the model since its newest step."""

    def show(self, worker: Worker) -> None:
        """Write the copy into the model."""
        worker.parameters = self.x
        self.shown = self.x.clone() if self.shown is None else self.shown.copy_(self.x)

    def take_edits(self, worker: Worker, *, rests: bool = False) -> None:
        """What the script has written into the model since then is in the copy from now on."""
        has_edits = self.shown is not None and worker.replica.take_edits(self.shown, into=self.x)
        if self.shown is not None and has_edits:
            self.shown.copy_(worker.parameters)
        self.is_edited = rests and (self.is_edited or has_edits)

    def consensus(self, own: Flat) -> Flat:
        """What this worker gives to a mean of all at rest; `own` are the model's parameters, and may be written to.

        Neighbours may have moved the copy by numbers of before an edit: where there was one, the model's count.
        """
        return own if self.is_edited else own.copy_(self.x)
