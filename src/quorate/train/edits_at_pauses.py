"""Edits of parameters by the script before a pause: each worker's numbers count in the common parameters there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.means.means import MeansOfAll
from quorate.observe.digests import Digests, bits_of
from quorate.observe.step_observer import StepObserver
from quorate.replica.replica import Replica
from quorate.strategies.parts.edits import WithPoint
from quorate.strategies.parts.local_steps import LocalSteps, LocalStepSettings, SynchronousPhase


class EditedWorker(Worker, Protocol):
    """A worker, with the parts that show whether its parameters were edited."""

    name: str
    strategy: Strategy
    agrees_in_backward: bool
    has_rounds: bool

    updates: int
    """The number of updates that the replica has applied."""

    digests: Digests

    @property
    def wire(self) -> Wire:
        """The wire between replicas."""

    @property
    def replica(self) -> Replica: ...

    @property
    def means(self) -> MeansOfAll: ...


class EditsAtPauses(StepObserver):
    """Detects that the script has edited the parameters, and lets the edits count at the next pause of all.

    If pauses form a mean of the replicas, edits without a step since the newest mean count in it. If pauses lead to a
    common point (`WithPoint`), all edits since the newest step count. If all workers have edited their parameters, the
    point becomes the mean of these. Otherwise it becomes the mean over all workers of the edited parameters, and of the
    point for each worker without edits. In a synchronous phase, unequal replicas are averaged.

    Cost: Cost: a pass over the parameters after each mean, and before each mean of a pause. With a point, there is one
    after each step, and one request to the board in each pause.
    """

    def __init__(self, worker: EditedWorker) -> None:
        self.optimizer, self._worker = worker.name, worker
        self._vectors = 0
        self._bits: list[Tensor] | None = None
        """Digests of the parameters after the newest mean or step; None after a step of which no edit is looked for."""
        self._checksum: int | None = None
        """Digest of the parameters in a synchronous phase; None until it is needed, and after changes."""
        self._is_pausing = False
        """Whether `pause_begins` has looked for edits before the current pause."""
        self._kept: tuple[Flat, bytes] | None = None
        """The parameters with which this worker paused in a synchronous phase, and their digests, during the pause."""
        self.written: Flat | None = None
        """The edited parameters as they were when this worker paused, during that pause, where there is a point."""
        self.updates = 0
        """The number of updates after the newest pause of all workers, or in a checkpoint: the same on all of them."""

    @property
    def looks(self) -> bool:
        """Whether replicas meet in means of parameters or at a point, and are not hidden."""
        strategy, terms = self._worker.strategy, self._worker.strategy.client_terms
        return (
            (strategy.meets == "all" and strategy.replicas == "meet") or isinstance(self._worker.state, WithPoint)
        ) and not (terms is not None and terms.is_hidden)

    @property
    def is_synchronous(self) -> bool:
        """Whether replicas are equal after each step, for now."""
        state = self._worker.state
        return isinstance(state, SynchronousPhase) and not state.is_local

    @property
    def _has_point(self) -> bool:
        return isinstance(self._worker.state, WithPoint) and not self.is_synchronous

    def step_ended(self) -> None:
        self._checksum, vectors = None, self._worker.means.vectors
        if vectors == self._vectors and not self._has_point:
            self._bits = None
        else:
            self.note()

    def note(self) -> None:
        """Note the parameters as they are: no edit of the script has made them so."""
        if self.looks:
            self._bits, self._vectors, self._checksum = self._bits_now(), self._worker.means.vectors, None

    def _bits_now(self) -> list[Tensor]:
        return [bits_of(p) for p in self._worker.replica.all_trained]

    def applied(self) -> None:
        """Note the parameters that a mean of others has brought to this worker, which is paused.

        If it ends the synchronous phase, edits of a worker that was left behind count in the pause of the next one.
        """
        self.note()
        if self._kept is None or self.is_synchronous:
            return
        worker, (kept, digests), self._kept = self._worker, self._kept, None
        if not self._differs_from_left(digests):
            return
        if self._has_point:
            self._write(kept, crc32(digests))
        else:
            worker.parameters = kept
            self.note()
            self._seem_edited()

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Let changes of the parameters inside be no edits."""
        is_edited = self._edited() is not None
        yield
        if not is_edited:
            self.note()

    @property
    def is_pending(self) -> bool:
        """Whether the parameters have edits that no pause has counted, for a checkpoint."""
        return self.written is not None or self._edited() is not None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the parameters inside as the script has edited them, where a pause has moved them since."""
        worker, now = self._worker, None
        if self.written is not None:
            now, worker.parameters = worker.parameters, self.written
        yield
        if now is not None:
            worker.parameters = now

    def resumed(self, *, is_edited: bool) -> None:
        """Go on from a checkpoint, which says whether its replica has edits that no pause has counted."""
        self.updates = self._worker.updates
        self.note()
        if is_edited:
            self._seem_edited()

    def _seem_edited(self) -> None:
        if self._bits is not None:
            self._bits = [~bits for bits in self._bits]  # others than those of the parameters

    def _edited(self) -> int | None:
        """Return the checksum of the parameters if the script may have edited them, else None."""
        if self._bits is None:
            return None
        now, before = ([int(x) for x in bits] for bits in (self._bits_now(), self._bits))
        is_edited = self._worker.means.headers.most_of_pieces(float(now != before))
        return crc32(repr(now).encode()) if is_edited else None

    # -- where pauses form means of the replicas

    def contribution(self) -> tuple[tuple[Flat, float] | None, int | None]:
        """Return the contribution of the strategy, and the checksum of edited parameters, or None.

        An edit without a step weighs as much as one step beside local steps of others.
        """
        worker = self._worker
        if self.looks and self.is_synchronous:
            if self._checksum is None:
                self._checksum = crc32(repr([worker.updates, *map(int, self._bits_now())]).encode())
            return worker.strategy.contribution(worker), self._checksum
        edited = None if self._has_point else self._edited()
        contribution = worker.strategy.contribution(worker)
        if edited is None or contribution is None or contribution[1]:
            return contribution, None if contribution is not None and contribution[1] else edited
        exchanges_gradients = worker.agrees_in_backward and not worker.means.ready.is_alone
        if isinstance(worker.state, LocalSteps) and not exchanges_gradients:
            contribution = contribution[0], weight_of_a_step(worker.strategy)
        return contribution, edited

    def average(self) -> None:
        """Go on from the mean of the edited parameters, if there are any; called by all workers in a pause of all."""
        worker = self._worker
        if not self.looks:
            return
        if self._has_point:
            self._move_point()
        elif worker.means.edits != "none":
            at = worker.parameters
            if worker.means.edits == "unlike":
                with worker.means.reducer.uncoded():
                    mean = worker.means.of(at, weight=self._weight_of_replica())
                at = worker.parameters = mean.wait()
            if worker.means.edits == "unlike" or not self.is_synchronous:
                worker.strategy.restored(worker, at)
            self.note()
        worker.means.edits = "none"

    def _weight_of_replica(self) -> float:
        """Return 1; in a synchronous phase, where some workers are steps behind others, 0 for these.

        Those behind that have edited their parameters count 1; the ones ahead count for the others behind, too.
        """
        worker = self._worker
        if not self.is_synchronous:
            return 1.0
        is_edited = self._differs_from_left(worker.digests.text())
        numbers = torch.zeros(3, worker.wire.max_size, dtype=torch.float64)
        numbers[:, worker.rank] = torch.tensor([1.0, worker.updates, is_edited])
        members, updates, edited = worker.means.of_number(numbers)
        is_ahead = (updates == updates.max()) & (members > 0)
        if not is_ahead[worker.rank]:
            return is_edited
        return int((members > 0).sum() - (edited > 0).sum()) / int(is_ahead.sum())

    def _differs_from_left(self, digests: bytes) -> float:
        """Return 1 if this replica, with `digests`, was edited after others left it behind, else 0."""
        worker = self._worker
        return worker.means.headers.most_of_pieces(float(worker.digests.differs_from_left(worker.updates, digests)))

    # -- where pauses lead to a common point

    def pause_begins(self) -> None:
        """Keep edited parameters for `average`; called before this worker answers others in a pause of all."""
        if self._is_pausing:
            return
        worker, self._checksum, self._is_pausing = self._worker, None, True
        if self.looks and self.is_synchronous:
            self._kept = worker.parameters, worker.digests.text()
        elif self.looks and self._has_point and (checksum := self._edited()) is not None:
            self._write(worker.parameters, checksum)
            worker.state.forget_steps()

    def _write(self, edited: Flat, checksum: int) -> None:
        self.written = edited
        self._worker.wire.board.set(self._key(self._worker.rank), str(checksum).encode())

    def pause_ended(self) -> None:
        """Note the parameters with which the pause leaves this worker."""
        self._is_pausing, self._kept, self.updates = False, None, self._worker.updates
        if self._has_point:
            self.note()

    def _move_point(self) -> None:
        worker, written = self._worker, self.written
        members = worker.wire.alive
        texts = worker.wire.board.get_all([self._key(rank) for rank in members])
        if all(text is None for text in texts):
            return
        if written is None:
            own = worker.strategy.consensus(worker)[0]
        else:
            # Beside workers that have not edited theirs, it counts where rounds have moved it during the pause.
            own = worker.parameters if worker.has_rounds and None in texts else written
        with worker.means.reducer.uncoded():
            work = worker.means.of(own)
        mean = work.wait()  # also where all are alike: afterwards no worker reads the board
        at = written if written is not None and len(set(texts)) == 1 else mean
        if worker.strategy.replicas == "meet":
            worker.parameters = at
        worker.strategy.restored(worker, at)
        worker.wire.board.delete(self._key(worker.rank))
        self.written = None

    def _key(self, rank: int) -> str:
        return f"edits/{self._worker.wire.name}/{rank}/"


def weight_of_a_step(strategy: Strategy) -> float:
    """Return the weight of one local step in a mean."""
    if isinstance(strategy, LocalStepSettings) and strategy.period.unit == "steps":
        return 1 / strategy.period.count
    return 1.0
