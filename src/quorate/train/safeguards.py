"""What watches over one optimizer's training: requests to leave, gradients that are not finite, replicas that part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quorate.checkpoint.context import checkpoint_context
from quorate.checkpoint.saving import saving
from quorate.core.errors import ConfigurationError
from quorate.data.context import data_context
from quorate.observe.digests import Digests
from quorate.observe.finite import Finite, OnNonfinite, check_policy
from quorate.observe.stopping import leave, stop_of
from quorate.reducers.outliving import Outliving
from quorate.train.step_weight import Weight, check_weight
from quorate.wire.current import Place
from quorate.wire.failure import note_training

if TYPE_CHECKING:
    from quorate.train.worker import OptimizerWorker

COMPARE_EVERY = 1000
_FURTHER_STEPS = 6


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What `distribute` is told beside the strategy, the same on every worker."""

    on_nonfinite: OnNonfinite = "warn"
    compare_every: int = COMPARE_EVERY
    """Rounds between two comparisons of the replicas, which are also compared at the end; 0: never."""
    weight: Weight = "equal"
    """What a worker counts in means of all."""
    strategy: str = "(unnamed)"
    """What it is called in sentences."""

    def __post_init__(self) -> None:
        check_policy(self.on_nonfinite)
        check_weight(self.weight)
        every: object = self.compare_every
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise ConfigurationError(f"compare_every is {every!r}; it is a number of rounds, or 0 for never")


def prepare_to_leave(place: Place, boundary: Callable[[], None]) -> None:
    """Where the script keeps checkpoints, make one before leaving; ask `boundary` also where a loader gives a batch."""
    stop, context = stop_of(place), checkpoint_context(place)
    if not stop.before:
        stop.before.append(lambda: None if context.tell is None else saving(place).save({}))
        saving(place)  # its boundary comes first
        data_context(place).boundaries.append(boundary)


@dataclass
class _Sums:
    """One of each worker."""

    all: list[Outliving] = field(default_factory=list)


class Safeguards:
    """Those of one worker; its methods are called at the same places on every worker."""

    def __init__(self, worker: OptimizerWorker, place: Place, watched: Watched) -> None:
        self.stop = stop_of(place)
        self.stop.trainings += 1
        self.finite = Finite(worker.wire, watched.strategy, watched.on_nonfinite)
        self.digests = Digests(worker.wire, watched.strategy, watched.compare_every, self._named)
        self.outlives = worker.strategy.on_death == "continue"
        """Whether the others go on when a worker dies."""
        self.sums = place.context(_Sums).all
        """What forms them in that case, of all of this worker's optimizers."""
        self._worker, self._place = worker, place
        prepare_to_leave(place, self.step_begins)

    def _named(self) -> tuple[Sequence[str], Sequence[Tensor]]:
        worker = self._worker
        return [s.name for s in worker.peers.layout.segments], worker.trained

    def step_begins(self) -> None:
        """A backward pass begins, or a pause: who was asked to leave does so here, unless an iteration is under way."""
        everyone = self._worker.everyone()
        self._worker.saving.boundary(is_forward_done=True)
        if not self.stop.is_due and self.stop.asked is not None:
            # Where no exchange has everyone, all are asked, and settle.
            self.stop.is_due = all(_settles(worker) for worker in everyone)
        if self.stop.is_due and (self._is_even(everyone) or self._passed(everyone)):
            leave(self._place, everyone, settles=all(_settles(worker) for worker in everyone))

    def _is_even(self, everyone: list[OptimizerWorker]) -> bool:
        return len({worker.step for worker in everyone if not worker.finished}) <= 1

    def _passed(self, everyone: list[OptimizerWorker]) -> bool:
        """Whether one has made several further steps since: they make unequally many, and there is no telling when."""
        steps = [worker.step for worker in everyone]
        if self.stop.since is None:
            self.stop.since = steps
        return any(now - then >= _FURTHER_STEPS for now, then in zip(steps, self.stop.since, strict=False))

    def leaves_out(self, ranks: list[int], number: int) -> bool:
        """See `Finite.leaves_out`."""
        is_scaled = "found_inf" in self._worker.optimizer.__dict__
        return self.finite.leaves_out(ranks, number, is_scaled=is_scaled)

    def finished(self, number: int) -> None:
        """The training has ended after so many rounds."""
        self._worker.saving.boundary()
        self.stop.trainings -= 1
        if self.stop.trainings == 0:
            note_training(self._worker.wire.board, self._worker.wire.rank, is_under_way=False)
        self.digests.look_at_end(number)


def _settles(worker: OptimizerWorker) -> bool:
    """Whether no exchange of its steps has everyone."""
    return worker.has_rounds or worker.strategy.is_gossip


class LeavesAlone:
    """A listener for a worker without others: it leaves where its next backward pass begins."""

    def __init__(self, place: Place) -> None:
        self._place = place
        stop_of(place).trainings += 1
        prepare_to_leave(place, self.backward_begins)

    def backward_begins(self) -> None:
        """Where it leaves, if it was asked to."""
        if stop_of(self._place).asked is not None:
            leave(self._place, ())

    def forward_ended(self, losses: Any) -> None:
        """Nothing."""

    def backward_ended(self) -> None:
        """Nothing."""
