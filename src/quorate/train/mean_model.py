"""Replicas that differ, seen together: their mean in every model for a while, and how far each one is from it."""

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
    own = worker.parameters
    with worker.timer.elsewhere():
        mean = worker.peers.mean(own, weight=worker.strategy.mass(worker)).wait()
    worker.parameters = mean
    note_distance(worker, own.segments(), mean.segments())
    return own


def apart(place: Place) -> list[OptimizerWorker]:
    """Those of this worker's optimizers whose replicas differ between steps, and also while all rest."""
    workers = [worker for worker in listeners(place).all if isinstance(worker, OptimizerWorker)]
    return [worker for worker in workers if not worker.strategy.has_means and not worker.finished]
