"""Leaving on request: all workers after the same step, with equal replicas.

A worker that was asked to leave says so in the header of its next exchange, so that all learn of it in the same mean.
Under rounds, where no mean has all workers, all are asked and pause. No worker leaves in the middle of a step: they
leave where the next one begins, so that schedulers and logs behind `optimizer.step()` have run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorate.core.errors import QuorateError, Stopped
from quorate.core.telling import tell
from quorate.observe.step_observer import StepObserver

INTERRUPTED, RETRY = 130, 75
"""Exit statuses: interrupted by a person; asked to make room, so that a restart makes sense."""
INTERRUPT_WITHIN = 10.0
"""Seconds that workers have to leave after a person has interrupted them."""
_RETRY_MARK = 4096.0
"""In the summed header: the number of workers that want a retry is a multiple of it."""


_END_MARK = 2.0**-20
"""In the same sum: the mark of workers that know that the training is to end."""


class Stop:
    """The request to this worker to leave. `asked` is its exit status."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.is_due = False
        """Whether all have agreed: this worker leaves where its next step begins."""
        self.is_agreed = False
        """Whether it is due by agreement only: workers with other pieces of the replica leave with it."""
        self.reason: str | None = None
        """The reason to end all loops, once this worker knows it."""
        self.mark = 0.0
        """The number in the headers of this worker."""
        self.wakes: list[StepObserver] = []
        """Observers that are called once this worker was asked to leave."""
        self.is_over = False
        """Whether all have learnt in the same mean that their loops are to end."""
        self.since: list[int] | None = None
        """The optimizers' steps when it was due, where several make unequally many."""
        self.left_with: int | None = None
        """The exit status, once it leaves."""
        self.leave_within: float | None = None
        """The seconds that workers have to leave, where the run says so."""
        self.trainings = 0
        """Distributed optimizers that have not finished; without one there is no step to wait for."""
        self.has_trained = False
        """Whether all optimizers have finished once: the script may be saving the result."""
        self.before: list[Callable[[], object]] = []
        """Called, in order, on a worker that is about to leave, to save."""

    @property
    def limit(self) -> float | None:
        """The seconds that this worker has to leave once it was asked; None: until the platform kills it."""
        usual = INTERRUPT_WITHIN if self.asked == INTERRUPTED else None
        return usual if self.leave_within is None else self.leave_within

    def is_idle(self, status: int) -> bool:
        """Whether a worker that is asked to leave with `status` need not finish anything, and has not left yet."""
        is_saving = self.has_trained and status == RETRY
        return self.trainings == 0 and self.left_with is None and not is_saving

    def ask(self, status: int) -> None:
        """Request to leave with this status; the first one counts. Signal handlers and other threads may call this."""
        if self.asked is None:
            self.asked = status
            self._sign()
            for observer in self.wakes:
                observer.due = 0

    def end(self, reason: str) -> None:
        """Let the loops of all workers end; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._sign()

    def _sign(self) -> None:
        leaves = 0.0 if self.asked is None else 1.0 if self.asked == INTERRUPTED else _RETRY_MARK
        self.mark = leaves if self.reason is None else leaves + _END_MARK

    def learn(self, marks: float) -> None:
        """Take the sum of everyone's marks, which all workers learn in the same exchange."""
        self.is_over |= marks % 1.0 > 0
        if marks >= 1.0:
            self.ask(RETRY if marks >= _RETRY_MARK else INTERRUPTED)
            self.is_due = True


class Finishes(Protocol):
    """A training that ends before its worker leaves."""

    def finish(self) -> None: ...


def leave(stop: Stop, trainings: Sequence[Finishes], *, at_pause: bool = False) -> None:
    """End the training in order and raise `Stopped`; once.

    Actions before leaving are done where all are after the same step; with `at_pause`, when no worker steps any more.
    """
    if stop.left_with is not None:
        return
    status = INTERRUPTED if stop.asked is None else stop.asked
    stop.left_with = status
    if not at_pause:
        _before_stopping(stop)
    for training in trainings:
        training.finish()
    if at_pause:
        _before_stopping(stop)
    raise Stopped(status)


def _before_stopping(stop: Stop) -> None:
    for action in tuple(stop.before):
        try:
            action()
        except QuorateError as error:
            tell(f"quorate: {error}\n")
