"""When a worker that was asked to stop leaves: where its next step begins, all of its optimizers together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorate.checkpoint.participants import checkpoint_context
from quorate.checkpoint.saving import saving
from quorate.data.context import data_context
from quorate.observe.backward import Listener
from quorate.observe.stopping import leave, stop_of
from quorate.wire.current import Place
from quorate.wire.failure import note_training
from quorate.wire.survivors import DeathTolerance

_FURTHER_STEPS = 6


def prepare_to_leave(place: Place, boundary: Callable[[], None]) -> None:
    """Where the script keeps checkpoints, make one before leaving; ask `boundary` also where a loader gives a batch."""
    stop, context = stop_of(place), checkpoint_context(place)
    if not stop.before:
        stop.before.append(lambda: None if context.tell is None else saving(place).save({}))
        saving(place)  # its boundary comes first
        data_context(place).boundaries.append(boundary)


class Training(Protocol):
    """One optimizer's training, as far as it can be left."""

    @property
    def step(self) -> int:
        """Steps so far."""

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""

    @property
    def settles(self) -> bool:
        """Whether no exchange of its steps has everyone."""

    def finish(self) -> None: ...


class Leaving:
    """That of one worker; its methods are called at the same places on every worker."""

    def __init__(self, place: Place, everyone: Callable[[], Sequence[Training]]) -> None:
        """`everyone` gives this worker's part in every optimizer that is distributed, in order."""
        self._place, self._everyone, self._stop = place, everyone, stop_of(place)
        self._stop.trainings += 1
        prepare_to_leave(place, self.step_begins)

    def step_begins(self) -> None:
        """A backward pass begins, or a pause: who was asked to leave does so here, unless an iteration is under way."""
        stop, everyone = self._stop, self._everyone()
        saving(self._place).boundary(is_forward_done=True)
        settles = all(training.settles for training in everyone)
        if not stop.is_due and stop.asked is not None:
            stop.is_due = settles and not stop.is_agreed  # where no exchange has everyone, all are asked, and settle
        if stop.is_due and (_is_even(everyone) or self._passed(everyone)):
            leave(self._place, everyone, settles=settles)

    def _passed(self, everyone: Sequence[Training]) -> bool:
        """Whether one has made several further steps since: they make unequally many, and there is no telling when."""
        steps = [training.step for training in everyone]
        if self._stop.since is None:
            self._stop.since = steps
        return any(now - then >= _FURTHER_STEPS for now, then in zip(steps, self._stop.since, strict=False))

    def finished(self) -> None:
        """This training has ended."""
        saving(self._place).boundary()
        self._stop.trainings -= 1
        if self._stop.trainings == 0:
            note_training(self._place.wire.board, self._place.wire.rank, is_under_way=False)
            self._place.context(DeathTolerance).tell_launcher()


def _is_even(everyone: Sequence[Training]) -> bool:
    return len({training.step for training in everyone if not training.is_finished}) <= 1


class LeavesAlone(Listener):
    """A listener for a worker without others: it leaves where its next backward pass begins."""

    def __init__(self, place: Place) -> None:
        self._place = place
        stop_of(place).trainings += 1
        prepare_to_leave(place, self.backward_begins)

    def backward_begins(self) -> None:
        """Where it leaves, if it was asked to."""
        if stop_of(self._place).asked is not None:
            leave(self._place, ())
