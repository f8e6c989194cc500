"""Pauses in training that all workers make together: the end of an epoch of a dynamic share, an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from quorate.checkpoint.participants import Trained
from quorate.checkpoint.saving import saving
from quorate.core.autocast import without_autocast
from quorate.core.errors import ConfigurationError
from quorate.core.strategy import steps_apart
from quorate.core.vectors import Flat
from quorate.data.context import DataContext
from quorate.observe.ends import Ends
from quorate.observe.step_observer import Observers
from quorate.observe.step_times import note_distance
from quorate.train.in_common import apart
from quorate.train.loop import Loop, loops_of
from quorate.train.step_watches import evaluates_with_all
from quorate.wire.current import Place


def pause(place: Place) -> None:
    """Return when no worker steps any more, with equal replicas; early workers answer the others meanwhile.

    Does nothing without a distributed optimizer. Raises as `Work.wait`.
    """
    loops = loops_of(place)
    if (division := place.context(DataContext).division) is not None:
        division.check_meeting()
    saving(place).boundary()
    for kept in place.context(Trained).ordered:
        if kept.worker is None:
            kept.pause()
    for loop in loops[:1]:
        loop.leaving.between_steps()
    keep_own(place)
    comes_again = True
    while comes_again:
        for loop in loops:
            without_autocast(loop.pause)
        saving(place).boundary()
        for loop in loops:
            loop.resume()
        # Workers that have paused only to save step again, and are waited for.
        comes_again = saving(place).some_saved and any(steps_apart(loop.strategy) for loop in loops)
    for loop in loops[:1]:
        loop.leaving.between_steps()


def enter_evaluation(place: Place) -> None:
    """Pause for an evaluation, which all workers enter. Raises as `Ends.evaluation_begins`, and as `pause`."""
    needs_all = any(evaluates_with_all(loop.worker) and not loop.worker.finished for loop in loops_of(place))
    place.context(Ends).evaluation_begins(place, needs_all=needs_all)
    pause(place)


def go_away(place: Place) -> None:
    """Pause this worker alone. Raises `ConfigurationError` if the others would have to wait for it."""
    for loop in loops_of(place):
        if not loop.worker.has_rounds:
            raise ConfigurationError(
                "world.evaluate(this_worker_only=True) needs a strategy that does not wait for every worker; call "
                "world.evaluate() on all workers"
            )
        loop.worker.rounds.goes_away()


def come_back(place: Place) -> None:
    """Continue from the present place of the others."""
    for loop in loops_of(place):
        if loop.worker.has_rounds:
            with loop.replica.in_training(), loop.worker.edits.excluded():
                loop.worker.rounds.is_back()


@contextmanager
def waiting(place: Place) -> Iterator[Callable[[], None]]:
    """Let no round wait for this worker inside, while it waits for others elsewhere.

    Yields a function to be called now and then: it answers workers that need copies before they can come.
    """
    rounds_of = [loop.running_rounds for loop in loops_of(place)]
    running = [rounds for rounds in rounds_of if rounds is not None]
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


@contextmanager
def backward_is_local(place: Place) -> Iterator[None]:
    """Exclude backward passes inside from training: see `Loop.evaluating`."""
    watching = place.context(Observers)
    with ExitStack() as inside:
        for loop in loops_of(place):
            inside.enter_context(loop.evaluating())
        before, watching.is_paused = watching.is_paused, True
        try:
            yield
        finally:
            watching.is_paused = before


def agree_on_buffers(place: Place) -> None:
    """Copy rank 0's buffers to every worker, as torch DDP does."""
    for loop in loops_of(place):
        loop.agree_on_buffers()


def pause_with_loaders(place: Place) -> None:
    """Let loaders that end for all workers together call `pause`."""
    callbacks = place.context(DataContext).at_pause
    if not callbacks:
        callbacks.append(partial(pause, place))


@contextmanager
def at_the_mean(place: Place) -> Iterator[None]:
    """Make the models the mean of all replicas inside, if these differ, and restore this worker's own after it.

    All workers are paused. The distance of the own replica from the mean is recorded. Numbers that are written into the
    parameters inside, the same on all workers, stay. They are added to the worker's own replica, or to the common
    starting point under strategies of local steps. Cost: a mean of the parameters, and two copies of them.
    """
    with apart(loops_of(place)):
        yield from _at_the_mean(place)


def _at_the_mean(place: Place) -> Iterator[None]:
    unequal = [loop for loop in loops_of(place) if loop.strategy.replicas == "differ" and not loop.worker.finished]
    gossiping = [(loop, *without_autocast(go_to_the_mean, loop)) for loop in unequal]
    local = [(loop.worker, loop.worker.parameters) for loop in _equal_now(place)]
    try:
        yield
    finally:
        for loop, own, mean in gossiping:
            worker, edited = loop.worker, loop.worker.parameters
            is_edited = loop.replica.take_edits(mean, into=own)
            worker.parameters = own
            if is_edited:
                loop.strategy.restored(worker, edited)
                worker.edits.note()
        for worker, before in local:
            are_on_servers = worker.is_served and (worker.servers.take_row_edits() or worker.servers.has_other_states)
            if worker.replica.take_edits(before, into=before) or are_on_servers:
                worker.strategy.restored(worker, worker.parameters)
                worker.edits.note()


def go_to_the_mean(loop: Loop) -> tuple[Flat, Flat]:
    """Put the mean of all replicas into the model, note how far the own one was from it, and return own and mean."""
    worker, own = loop.worker, loop.worker.parameters
    with worker.timer.elsewhere():
        mean = loop.mean_of_all()
    worker.parameters = mean
    note_distance(worker.timer, own.segments(), mean.segments())
    return own, mean


@contextmanager
def at_the_own(place: Place) -> Iterator[None]:
    """Make the models this worker's own inside, if its replica has become equal to others as all paused.

    Cost: a copy of the parameters.
    """
    now: list[tuple[Loop, Flat]] = []
    for loop in loops_of(place):
        if loop.parameters_before is not None and not loop.worker.finished:
            now.append((loop, loop.worker.parameters))
            loop.worker.parameters = loop.parameters_before
    try:
        with apart(loops_of(place)):
            yield
    finally:
        for loop, parameters in now:
            loop.worker.parameters = parameters


def keep_own(place: Place) -> None:
    """Keep this worker's replica for `at_the_own` before all become equal. Cost: a copy of the parameters."""
    for loop in _equal_now(place):
        if loop.parameters_before is None:
            loop.parameters_before = loop.worker.parameters


def differ(place: Place) -> bool:
    """Return whether the replicas of some optimizer differ between steps."""
    return any(loop.strategy.replicas in ("meet", "differ") and not loop.worker.finished for loop in loops_of(place))


def _equal_now(place: Place) -> list[Loop]:
    """Return the loops whose replicas differ between steps, and are equal while all are paused."""
    return [loop for loop in loops_of(place) if loop.strategy.replicas == "meet" and not loop.worker.finished]
