"""Pauses in training that all workers make together: the end of an epoch dealt out as it went, an evaluation."""

from __future__ import annotations

from quorate.data.loader import RESTS
from quorate.train.backward import listeners
from quorate.train.worker import OptimizerWorker
from quorate.wire.current import Place


def rest(place: Place) -> None:
    """Return when no worker steps any more, with equal replicas; those that come early keep the others company.

    Nothing where no optimizer is distributed. Raises as `Work.wait`.
    """
    workers = _workers(place)
    for worker in workers:
        worker.rest()
    for worker in workers:
        worker.rested()


def go_away(place: Place) -> None:
    """This worker alone pauses; the others go on. Raises `ConfigurationError` where they would have to wait for it."""
    for worker in _workers(place):
        worker.goes_away()


def come_back(place: Place) -> None:
    """It goes on, from where the others are by now."""
    for worker in _workers(place):
        worker.is_back()


def agree_on_buffers(place: Place) -> None:
    """Give every worker rank 0's buffers, as torch DDP does."""
    for worker in _workers(place):
        worker.agree_on_buffers()


def rests_with_loaders(place: Place) -> None:
    """From now on loaders that end for all together call `rest`."""
    place.kept.setdefault(RESTS, [lambda: rest(place)])


def _workers(place: Place) -> list[OptimizerWorker]:
    return [worker for worker in listeners(place).all if isinstance(worker, OptimizerWorker)]
