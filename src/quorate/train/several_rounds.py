"""Several optimizers of one worker that agree in rounds: each has its own rounds, and the worker waits in one of them.

Workers may wait for each other in a circle: one in the rounds of one optimizer, for a worker that waits for it in the
rounds of another. So a worker that waits for long in some rounds says so in the others, which start without it
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from quorate.rounds.of_worker import AnyRounds
from quorate.train.worker import StrategyWorker


class TrainingInRounds(Protocol):
    """The training of one optimizer: a `train.loop.Loop`."""

    worker: StrategyWorker
    is_paused: bool
    beside: Beside | None

    @property
    def running_rounds(self) -> AnyRounds | None:
        """Its rounds, before it has ended."""


class Beside:
    """The rounds of the other optimizers of the worker of `loop`. Implements `rounds.pace.OtherRounds`.

    Cost: two short messages to each leader where a worker waits longer than `seconds`.
    """

    def __init__(self, loop: TrainingInRounds, everyone: Sequence[TrainingInRounds]) -> None:
        self._loop, self._others = loop, [other for other in everyone if other is not loop]
        self.seconds, self._is_pausing = loop.worker.rounds.agreed.grace, False

    def wait(self) -> None:
        """Note that this worker waits in the rounds of `loop`.

        If all rounds wait for all workers, these come to the same rounds in the same order, and no message is sent,
        unless newcomers have joined, which come in between.
        """
        if not (self._is_pausing or self._are_in_lockstep()):
            self._each(lambda rounds: rounds.waits())

    def go_on(self) -> None:
        if not (self._is_pausing or self._are_in_lockstep()):
            self._each(lambda rounds: rounds.goes_on())

    def serve(self) -> None:
        """Send copies of the other replicas to newcomers, and to workers that have missed rounds."""
        self._each(lambda rounds: rounds.give_copies())

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Pause the rounds of `loop` inside; the others do not wait for this worker until they pause or step
        again."""
        self._each(lambda rounds: rounds.waits())
        self._is_pausing = True
        try:
            yield
        finally:
            self._is_pausing = False
        if self._loop.worker.has_ended:
            self._each(lambda rounds: rounds.goes_on())

    def _each(self, tell: Callable[[AnyRounds], None]) -> None:
        for other in self._others:
            if not other.is_paused and (rounds := other.running_rounds) is not None:
                tell(rounds)

    def _are_in_lockstep(self) -> bool:
        rounds_of = [loop.worker.rounds for loop in (self._loop, *self._others) if loop.running_rounds is not None]
        return all(rounds.waits_for_all and not rounds.rounds.some_joined for rounds in rounds_of)


def run_beside_each_other(everyone: Sequence[TrainingInRounds]) -> None:
    """Connect the rounds of all optimizers of one worker."""
    in_rounds = [loop for loop in everyone if loop.running_rounds is not None]
    for loop in in_rounds if len(in_rounds) > 1 else ():
        loop.beside = Beside(loop, in_rounds)
        loop.worker.rounds.rounds.run_beside(loop.beside)
