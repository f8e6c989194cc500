"""When a worker that was asked to stop leaves: where its next step begins, all of its optimizers together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quorate.checkpoint.participants import CheckpointContext
from quorate.checkpoint.saving import saving
from quorate.data.context import DataContext
from quorate.observe.step_observer import NEVER, Observers, Phase, StepObserver
from quorate.observe.stopping import Stop, leave
from quorate.wire.current import Place
from quorate.wire.failure import note_training
from quorate.wire.survivors import DeathTolerance

_FURTHER_STEPS = 6


class Training(Protocol):
    """The training of one optimizer, as far as it can be left."""

    @property
    def step(self) -> int:
        """The number of steps so far."""

    @property
    def is_stepping(self) -> bool:
        """Whether a step is being made, whose closure has called backward."""

    @property
    def is_finished(self) -> bool:
        """Whether the training has ended."""

    @property
    def meets_at_pauses(self) -> bool:
        """Whether no exchange of its steps has everyone."""

    def finish(self) -> None: ...


class Leaving(StepObserver):
    """Leave where a backward pass or a pause begins, once this worker was asked to stop.

    Its methods are called at the same places on every worker.
    """

    phase = Phase.CHECK

    def __init__(self, place: Place, trainings: Callable[[], Sequence[Training]]) -> None:
        """`trainings` gives those of all distributed optimizers of this worker, in an order that is the same on all."""
        self._place, self._trainings, self._stop = place, trainings, place.context(Stop)
        self.due = NEVER if self._stop.asked is None else 0
        self._stop.wakes.append(self)
        context = place.context(CheckpointContext)
        # Where the script keeps checkpoints, one is made before leaving.
        self._stop.before.append(lambda: saving(place).save({}) if context.listeners else None)
        saving(place)  # its boundary comes first
        place.context(DataContext).boundaries.append(self.between_steps)
        place.context(Observers).add(self)

    def begins(self) -> None:
        """The training of another optimizer begins."""
        self._stop.trainings += 1

    def backward_begins(self) -> None:
        """Leave, unless a step is being made."""
        if not any(training.is_stepping for training in self._trainings()):
            self.between_steps()

    def between_steps(self) -> None:
        """A step, a batch or a pause begins: leave here, unless an iteration is under way."""
        stop = self._stop
        if stop.asked is None and not stop.is_due:
            return
        saving(self._place).boundary(is_forward_done=True)
        trainings = self._trainings()
        at_pause = all(training.meets_at_pauses for training in trainings)
        if not stop.is_due and stop.asked is not None:
            stop.is_due = at_pause and not stop.is_agreed  # where no exchange has everyone, all are asked, and pause
        if stop.is_due and (_is_even(trainings) or self._passed(trainings)):
            leave(stop, trainings, at_pause=at_pause)

    def _passed(self, trainings: Sequence[Training]) -> bool:
        """Whether one has made several further steps since: they make unequally many, and there is no telling when."""
        steps = [training.step for training in trainings]
        if self._stop.since is None:
            self._stop.since = steps
        return any(now - then >= _FURTHER_STEPS for now, then in zip(steps, self._stop.since, strict=False))

    def finished(self) -> None:
        """A training has ended."""
        saving(self._place).boundary()
        self._stop.trainings -= 1
        if self._stop.trainings == 0:
            self._stop.has_trained = True
            note_training(self._place.wire.board, self._place.wire.rank, is_under_way=False)
            self._place.context(DeathTolerance).tell_launcher()


@dataclass
class _Own:
    leaving: Leaving | None = None


def leaving_of(place: Place, trainings: Callable[[], Sequence[Training]]) -> Leaving:
    """Return the `Leaving` of the worker of `place`."""
    own = place.context(_Own)
    if own.leaving is None:
        own.leaving = Leaving(place, trainings)
    return own.leaving


def _is_even(trainings: Sequence[Training]) -> bool:
    return len({training.step for training in trainings if not training.is_finished}) <= 1
