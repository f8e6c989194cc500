"""Replicas that differ: their mean in every model for a while, what each was before it, and how far it was from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quorate.core.vectors import Flat
from quorate.observe.backward import listeners
from quorate.observe.distance import note_distance
from quorate.train.worker import OptimizerWorker
from quorate.wire.current import Place


@contextmanager
def at_the_mean(place: Place) -> Iterator[None]:
    """Inside, the models are the mean of all replicas, where these differ; after it, this worker's own again.

    All workers rest. How far the own replica is from the mean goes into the records. What is written into the
    parameters inside, the same on all workers, stays: added to the own replica, or as where all go on from under
    strategies of local steps. Cost: a mean of the parameters, and two copies of them.
    """
    gossiping = [(worker, *go_to_the_mean(worker)) for worker in apart(place)]
    local = [(worker, worker.parameters) for worker in _equal_now(place)]
    try:
        yield
    finally:
        for worker, own, mean in gossiping:
            edited = worker.parameters
            is_edited = worker.replica.take_edits(mean, into=own)
            worker.parameters = own
            if is_edited:
                worker.strategy.restored(worker, edited)
        for worker, before in local:
            if worker.replica.take_edits(before, into=before):
                worker.strategy.restored(worker, worker.parameters)


def go_to_the_mean(worker: OptimizerWorker) -> tuple[Flat, Flat]:
    """Put the mean of all replicas into the model, note how far the own one was from it, and return own and mean."""
    own, strategy = worker.parameters, worker.strategy
    with worker.timer.elsewhere():
        x, weight = strategy.consensus(worker)
        mean = worker.peers.mean(x, weight=weight).wait()
    worker.parameters = mean
    note_distance(worker, own.segments(), mean.segments())
    return own, mean


@contextmanager
def at_the_own(place: Place) -> Iterator[None]:
    """Inside, the models of replicas that have become equal, as all rest, are what this worker came with.

    After it they are as equal as before. Other models stay as they are. Cost: a copy of the parameters.
    """
    now: list[tuple[OptimizerWorker, Flat]] = []
    for worker in _optimizers(place):
        if worker.came_with is not None and not worker.finished:
            now.append((worker, worker.parameters))
            worker.parameters = worker.came_with
    try:
        yield
    finally:
        for worker, parameters in now:
            worker.parameters = parameters


def keep_own(place: Place) -> None:
    """All are about to become equal: keep what this worker comes with until its next step, for `at_the_own`.

    Cost: a copy of the parameters, where they become equal as all rest (local steps).
    """
    for worker in _equal_now(place):
        if worker.came_with is None:
            worker.came_with = worker.parameters


def differ(place: Place) -> bool:
    """Whether some optimizer's replicas differ between steps."""
    return any(worker.differs and not worker.finished for worker in _optimizers(place))


def apart(place: Place) -> list[OptimizerWorker]:
    """Those of this worker's optimizers whose replicas differ between steps, and also while all rest."""
    return [worker for worker in _optimizers(place) if worker.strategy.replicas == "differ" and not worker.finished]


def _equal_now(place: Place) -> list[OptimizerWorker]:
    """Those whose replicas differ between steps, and are equal while all rest."""
    return [w for w in _optimizers(place) if w.strategy.replicas == "meet" and not w.finished]


def _optimizers(place: Place) -> list[OptimizerWorker]:
    return [worker for worker in listeners(place).all if isinstance(worker, OptimizerWorker)]
