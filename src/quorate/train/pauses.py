"""Pauses in training that all workers make together: the end of an epoch dealt out as it went, an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quorate.checkpoint.saving import saving
from quorate.core.errors import ConfigurationError
from quorate.data.context import data_context
from quorate.observe.backward import listeners
from quorate.train.pause_models import keep_own
from quorate.train.worker import OptimizerWorker
from quorate.wire.current import Place


def rest(place: Place) -> None:
    """Return when no worker steps any more, with equal replicas; those that come early keep the others company.

    Nothing where no optimizer is distributed. Raises as `Work.wait`.
    """
    workers = _workers(place)
    saving(place).boundary()
    for worker in workers[:1]:
        worker.safeguards.step_begins()
    keep_own(place)
    comes_again = True
    while comes_again:
        for worker in workers:
            worker.rest()
        saving(place).boundary()
        for worker in workers:
            worker.rested()
        # Those that have only come to save go on stepping, and are to be waited for.
        comes_again = saving(place).some_saved and any(worker.strategy.is_gossip for worker in workers)
    for worker in workers[:1]:
        worker.safeguards.step_begins()


def go_away(place: Place) -> None:
    """This worker alone pauses; the others go on. Raises `ConfigurationError` where they would have to wait for it."""
    for worker in _workers(place):
        if not worker.has_rounds:
            raise ConfigurationError(
                "under a strategy that waits for all workers none can evaluate alone: call world.evaluate() on all"
            )
        worker.rounds.goes_away()


def come_back(place: Place) -> None:
    """It goes on, from where the others are by now."""
    for worker in _workers(place):
        if worker.has_rounds:
            worker.rounds.is_back()


@contextmanager
def waiting(place: Place) -> Iterator[Callable[[], None]]:
    """Inside, this worker waits for others elsewhere: no round waits for it.

    What it is given is to be called now and then: it answers those that need something of its replicas before they can
    come as well.
    """
    found = [worker.running_rounds for worker in _workers(place)]
    running = [rounds for rounds in found if rounds is not None]
    for rounds in running:
        rounds.waits()

    def serve() -> None:
        for rounds in running:
            rounds.give_copies()

    try:
        yield serve
    finally:
        for rounds in running:
            rounds.goes_on()


def agree_on_buffers(place: Place) -> None:
    """Give every worker rank 0's buffers, as torch DDP does."""
    for worker in _workers(place):
        worker.agree_on_buffers()


def rests_with_loaders(place: Place) -> None:
    """From now on loaders that end for all together call `rest`."""
    rests = data_context(place).rests
    if not rests:
        rests.append(lambda: rest(place))


def _workers(place: Place) -> list[OptimizerWorker]:
    return [worker for worker in listeners(place).all if isinstance(worker, OptimizerWorker)]
