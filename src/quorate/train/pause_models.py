"""Replicas that differ: their mean in every model for a while, what each was before it, and how far it was from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quorate.core.vectors import Flat
from quorate.observe.distance import note_distance
from quorate.train.loop import Loop, loops_of
from quorate.wire.current import Place


@contextmanager
def at_the_mean(place: Place) -> Iterator[None]:
    """Inside, the models are the mean of all replicas, where these differ; after it, this worker's own again.

    All workers rest. How far the own replica is from the mean goes into the records. What is written into the
    parameters inside, the same on all workers, stays: added to the own replica, or as where all go on from under
    strategies of local steps. Cost: a mean of the parameters, and two copies of them.
    """
    gossiping = [(loop, *go_to_the_mean(loop)) for loop in apart(place)]
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
        for worker, before in local:
            if worker.replica.take_edits(before, into=before):
                worker.strategy.restored(worker, worker.parameters)


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
    """Inside, the models of replicas that have become equal, as all rest, are what this worker came with.

    After it they are as equal as before. Other models stay as they are. Cost: a copy of the parameters.
    """
    now: list[tuple[Loop, Flat]] = []
    for loop in loops_of(place):
        if loop.came_with is not None and not loop.worker.finished:
            now.append((loop, loop.worker.parameters))
            loop.worker.parameters = loop.came_with
    try:
        yield
    finally:
        for loop, parameters in now:
            loop.worker.parameters = parameters


def keep_own(place: Place) -> None:
    """All are about to become equal: keep what this worker comes with until its next step, for `at_the_own`.

    Cost: a copy of the parameters, where they become equal as all pause (local steps).
    """
    for loop in _equal_now(place):
        if loop.came_with is None:
            loop.came_with = loop.worker.parameters


def differ(place: Place) -> bool:
    """Whether some optimizer's replicas differ between steps."""
    return any(loop.worker.differs and not loop.worker.finished for loop in loops_of(place))


def apart(place: Place) -> list[Loop]:
    """Those of this worker's optimizers whose replicas differ between steps, and also while all are paused."""
    return [loop for loop in loops_of(place) if loop.strategy.replicas == "differ" and not loop.worker.finished]


def _equal_now(place: Place) -> list[Loop]:
    """Those whose replicas differ between steps, and are equal while all are paused."""
    return [loop for loop in loops_of(place) if loop.strategy.replicas == "meet" and not loop.worker.finished]
