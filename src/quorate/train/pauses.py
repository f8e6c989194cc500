"""Pauses in training that all workers make together: the end of an epoch dealt out as it went, an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quorate.checkpoint.saving import saving
from quorate.core.errors import ConfigurationError
from quorate.data.context import data_context
from quorate.train.loop import loops_of
from quorate.train.pause_models import keep_own
from quorate.wire.current import Place


def pause(place: Place) -> None:
    """Return when no worker steps any more, with equal replicas; those that come early keep the others company.

    Nothing where no optimizer is distributed. Raises as `Work.wait`.
    """
    loops = loops_of(place)
    saving(place).boundary()
    for loop in loops[:1]:
        loop.leaving.step_begins()
    keep_own(place)
    comes_again = True
    while comes_again:
        for loop in loops:
            loop.pause()
        saving(place).boundary()
        for loop in loops:
            loop.resume()
        # Those that have only come to save go on stepping, and are to be waited for.
        comes_again = saving(place).some_saved and any(loop.strategy.is_gossip for loop in loops)
    for loop in loops[:1]:
        loop.leaving.step_begins()


def go_away(place: Place) -> None:
    """This worker alone pauses; the others go on. Raises `ConfigurationError` where they would have to wait for it."""
    for loop in loops_of(place):
        if not loop.worker.has_rounds:
            raise ConfigurationError(
                "under a strategy that waits for all workers none can evaluate alone: call world.evaluate() on all"
            )
        loop.worker.rounds.goes_away()


def come_back(place: Place) -> None:
    """It goes on, from where the others are by now."""
    for loop in loops_of(place):
        if loop.worker.has_rounds:
            loop.worker.rounds.is_back()


@contextmanager
def waiting(place: Place) -> Iterator[Callable[[], None]]:
    """Inside, this worker waits for others elsewhere: no round waits for it.

    What it is given is to be called now and then: it answers those that need something of its replicas before they can
    come as well.
    """
    found = [loop.running_rounds for loop in loops_of(place)]
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
    for loop in loops_of(place):
        loop.agree_on_buffers()


def rests_with_loaders(place: Place) -> None:
    """From now on loaders that end for all together call `pause`."""
    rests = data_context(place).rests
    if not rests:
        rests.append(lambda: pause(place))
