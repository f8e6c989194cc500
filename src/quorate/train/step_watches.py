"""Who looks on as the steps of one optimizer begin and end: none changes what is learnt; one says what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from quorate.checkpoint.participants import trained
from quorate.checkpoint.saving import saving
from quorate.data.resuming import loaders
from quorate.observe.ends import ends_of
from quorate.observe.stopping import stop_of
from quorate.train.buffer_watch import BufferWatch
from quorate.train.edits import Edits
from quorate.train.worker import StrategyWorker
from quorate.wire.current import Place


class StepWatches:
    """Checkpoints, records, comparisons of replicas, numbers that are not finite, and the search for edits between
    steps, of one worker.
    """

    def __init__(self, worker: StrategyWorker, place: Place) -> None:
        self._worker, self._saving, self._edits, self._stop = worker, saving(place), Edits(worker), stop_of(place)
        self._place, self._ends, self._trained = place, ends_of(place), trained(place)
        self._buffers = BufferWatch(worker)
        self._stop.is_agreed |= worker.seat is not None
        if worker.seat is not None:
            worker.seat.traffic.pauses.append(lambda: worker.means.ready.pausing())

    def step_begins(self) -> None:
        """`optimizer.step()` was called. Raises as `Edits.step_begins` and `Trained.check_entered`."""
        if self._trained.missing:
            self._trained.check_entered()
        self._saving.boundary(is_forward_done=True)
        self._edits.step_begins()

    def leaves_out(self, bad: list[int]) -> bool:
        """Whether this step's update is left out, as `bad` have brought gradients that are not finite."""
        worker = self._worker
        return worker.finite.leaves_out(bad, worker.updates + 1, is_scaled=worker.replica.is_scaled)

    def leaves_out_own(self) -> bool:
        """Whether this worker's update of this step is left out, as its own gradient is not finite; the others go on.

        Its neighbours get their exchange all the same. Raises `NotFinite` where that was asked for: on this worker, and
        the others end with it. Where an exchange brings all workers together, it tells; then nothing is looked at here.
        """
        worker, finite, replica = self._worker, self._worker.finite, self._worker.replica
        numbers = [None if x is None else _numbers_in(x) for x in replica.gradients]
        gradients = [x for x in numbers if x is not None]
        if not (gradients and finite.looks and worker.strategy.steps_apart):
            return False
        sums = [x.sum().abs().double().cpu().reshape(1) for x in gradients if x.device.type != "cpu"]
        on_cpu = [x for x in gradients if x.device.type == "cpu" and x.layout == torch.strided]
        is_bad = not finite.sees([*on_cpu, *sums])
        if not worker.means.headers.most_of_pieces(float(is_bad)):
            return False
        if is_bad:
            finite.note(replica.names, numbers)
        return self.leaves_out([worker.rank])

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes inside only add to `.grad`; of pieces, see `Traffic.reduces`."""
        worker = self._worker
        reduces = None if worker.seat is None else worker.seat.traffic.reduces
        with worker.means.ready.pausing():
            if reduces is not None:
                reduces(False)
            try:
                yield
            finally:
                if reduces is not None:
                    reduces(True)

    def training_pauses(self) -> None:
        """Raises `Mismatch` where workers of one replica are in the middle of a step."""
        self._meet("a pause of training")

    def training_ends(self) -> None:
        """Raises as `training_pauses`."""
        self._meet("the end of training")
        self._saving.boundary()
        had_more = any(loader.is_under_way for loader in loaders(self._place).values())
        self._ends.ended(self._place, self._worker.name, self._worker.step, had_more=had_more)

    def _meet(self, call: str) -> None:
        self._trained.check_entered()
        if self._worker.replica.host is not None:
            self._worker.replica.host.catch_up()
        if self._worker.seat is not None:
            self._worker.seat.traffic.forget()
            self._worker.seat.traffic.meet(call)

    def step_ended(self) -> None:
        """The strategy has made its step. Raises as `Digests.look`."""
        worker = self._worker
        if worker.seat is not None:
            worker.seat.traffic.forget()
        if worker.seat is not None and worker.strategy.steps_apart:
            self._stop.learn(worker.means.headers.most_of_pieces(self._stop.mark))
        if not (worker.has_rounds or worker.differs):
            worker.digests.look(worker.updates)
        self._edits.step_ended()
        self._ends.stepped(self._place, worker.name, worker.step)
        self._buffers.step_ended()
        worker.step_weight.step_ended()
        worker.timer.ended(is_scaled=worker.replica.is_scaled)
        self._saving.stepped()
        worker.losses.look()


def _numbers_in(gradient: Tensor) -> Tensor:
    """Those of a gradient; of a sparse one its values."""
    x = gradient.detach()
    return x._values() if x.layout == torch.sparse_coo else x
