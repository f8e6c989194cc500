"""Replicas that differ: their mean in every model for a while, what each was before it, and how far it was from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quorate.core.vectors import Flat
from quorate.train.backward import listeners
from quorate.train.distance import note_distance
from quorate.train.worker import OptimizerWorker
from quorate.wire.current import Place


@contextmanager
def at_the_mean(place: Place) -> Iterator[None]:
    """Inside, the models are the mean of all replicas, where these differ; after it, this worker's own again.

    All workers rest. How far the own replica is from the mean goes into the records. Cost: a mean of the parameters,
    and a copy of them.
    """
    own = [(worker, go_to_the_mean(worker)) for worker in apart(place)]
    try:
        yield
    finally:
        for worker, parameters in own:
            worker.parameters = parameters


def go_to_the_mean(worker: OptimizerWorker) -> Flat:
    """Put the mean of all replicas into the model, note how far the own one was from it, and return that one."""
    own, strategy = worker.parameters, worker.strategy
    with worker.timer.elsewhere():
        mean = worker.peers.mean(strategy.consensus(worker), weight=strategy.mass(worker)).wait()
    worker.parameters = mean
    note_distance(worker, own.segments(), mean.segments())
    return own


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
    for worker in _optimizers(place):
        if worker.strategy.is_apart and worker.strategy.has_means and not worker.finished and worker.came_with is None:
            worker.came_with = worker.parameters


def differ(place: Place) -> bool:
    """Whether some optimizer's replicas differ between steps."""
    return any(worker.strategy.is_apart and not worker.finished for worker in _optimizers(place))


def apart(place: Place) -> list[OptimizerWorker]:
    """Those of this worker's optimizers whose replicas differ between steps, and also while all rest."""
    return [worker for worker in _optimizers(place) if not worker.strategy.has_means and not worker.finished]


def _optimizers(place: Place) -> list[OptimizerWorker]:
    return [worker for worker in listeners(place).all if isinstance(worker, OptimizerWorker)]
