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
    """Return the common parameters of a new worker, or None. Raises as `check_shareable`, and `ConfigurationError` for
    parameters that share memory with those of `others`."""
    if worker.strategy.replicas != "shared":
        return None
    replica = worker.replica
    check_shareable(replica, worker.wire, label)
    if any(other.common is not None and other.common.has_any(replica.every) for other in others):
        raise ConfigurationError(f"two optimizers under {label} have parameters that share memory; give each its own")
    return CommonParameters(replica, worker.wire, lambda: worker.means.headers.admission.living)


@contextmanager
def apart(trainings: Iterable[_Training]) -> Iterator[None]:
    """Give this worker its own copy of the common parameters inside the context, during a pause of all workers.

    Changes inside, which are the same on all workers, are kept.
    """
    shared = [training.common for training in trainings if training.common is not None and not training.worker.finished]
    for common in shared:
        common.detach()
    try:
        yield
    finally:
        for common in shared:
            common.reattach()
