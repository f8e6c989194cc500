"""Parameters that all workers have in common: how a training begins with them, and what a pause of all is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from quorate.core.errors import ConfigurationError
from quorate.hogwild.common_parameters import CommonParameters, check_shareable
from quorate.train.worker import StrategyWorker


class _Training(Protocol):
    """One optimizer's training, as far as its parameters may be in common."""

    common: CommonParameters | None
    worker: StrategyWorker


def common_of(worker: StrategyWorker, label: str, others: Iterable[_Training]) -> CommonParameters | None:
    """Those of a worker that begins; None where each has its own. Raises as `check_shareable`, and for parameters that
    are a part of those of `others`."""
    if worker.strategy.replicas != "shared":
        return None
    replica = worker.replica
    check_shareable(replica, worker.wire, label)
    if any(other.common is not None and other.common.has_any(replica.every) for other in others):
        raise ConfigurationError(f"two optimizers under {label} have parameters that share memory; give each its own")
    return CommonParameters(replica, worker.wire, lambda: worker.means.headers.admission.members)


@contextmanager
def apart(trainings: Iterable[_Training]) -> Iterator[None]:
    """Inside, as all rest, parameters that are in common are this worker's own, as they were when all rested.

    What is written into them inside, the same on all workers, stays.
    """
    in_common = [
        training.common for training in trainings if training.common is not None and not training.worker.finished
    ]
    for common in in_common:
        common.detach()
    try:
        yield
    finally:
        for common in in_common:
            common.reattach()
