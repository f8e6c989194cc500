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
    rests_edited: bool = kept("drop", default=False)
    """Whether the script has edited the model since the newest step, in a pause of this worker."""

    def show(self, worker: Worker) -> None:
        """Write the copy into the model."""
        worker.parameters = self.x
        self.shown = self.x.clone() if self.shown is None else self.shown.copy_(self.x)

    def take_edits(self, worker: Worker, *, rests: bool = False) -> None:
        """Add to the copy what the script has written into the model since then.

        Where neighbours have moved the same numbers meanwhile, sums over all workers are kept. If the worker `rests`,
        the copy becomes the edited model, and stays so until its next step: neighbours may have moved it by numbers of
        before edits, of this worker and of theirs.
        """
        is_edited = self.shown is not None and worker.replica.take_edits(self.shown, into=self.x)
        self.rests_edited = rests and (self.rests_edited or is_edited)
        if is_edited and self.shown is not None:
            self.shown.copy_(worker.parameters)
            if rests:
                self.x.copy_(self.shown)
