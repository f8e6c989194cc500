"""Who looks on as the steps of one optimizer begin and end: none of them changes what is learnt."""

from __future__ import annotations

from quorate.checkpoint.saving import saving
from quorate.train.edits import Edits
from quorate.train.worker import StrategyWorker
from quorate.wire.current import Place


class StepWatches:
    """Checkpoints, records, comparisons of replicas, and the search for edits between steps, of one worker."""

    def __init__(self, worker: StrategyWorker, place: Place) -> None:
        self._worker, self._saving, self._edits = worker, saving(place), Edits(worker)

    def step_begins(self) -> None:
        """`optimizer.step()` was called. Raises as `Edits.step_begins`."""
        self._saving.boundary(is_forward_done=True)
        self._edits.step_begins()

    def step_ended(self) -> None:
        """The strategy has made its step. Raises as `Digests.look`."""
        worker = self._worker
        if not (worker.has_rounds or worker.differs):
            worker.digests.look(worker.updates)
        self._edits.step_ended()
        worker.step_weight.step_ended()
        worker.timer.ended(is_scaled=worker.replica.is_scaled)
        self._saving.stepped()
        worker.losses.look()
