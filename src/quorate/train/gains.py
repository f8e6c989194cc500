"""How much the gradients of workers differ, for the gain of AdaScale: measured around each mean of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.device_copies import values_of, widest
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.observe.step_observer import Observers, Phase, StepObserver
from quorate.optim.ada_scale import AdaScale, spread_of
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.train.worker import StrategyWorker


class LocalSquare(StepObserver):
    """The squared norm of this worker's own gradient, from before the mean."""

    phase = Phase.MEASURE

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self.newest: list[Tensor] | None = None
        """The norm of each tensor; None where there was no backward pass since the step before."""

    def backward_ended(self) -> None:
        """Cost: a pass over the gradient."""
        ready = self._worker.means.ready
        if ready.fired and not ready.paused:
            self.newest = _norms(self._worker.replica.gradients)


class Gains(StepObserver):
    """Compare each mean gradient with the gradients of the workers, for the optimizer."""

    phase = Phase.RECORD

    def __init__(self, optimizer: AdaScale, worker: StrategyWorker, local: LocalSquare) -> None:
        self._optimizer, self._worker, self._local = optimizer, worker, local
        self._mean: list[Tensor] | None = None

    def backward_ended(self) -> None:
        """Cost: another pass over the gradient."""
        if self._local.newest is not None:
            self._mean = _norms(self._worker.replica.gradients)

    def take_in(self, *_: object) -> None:
        """Every worker is about to make the step. Raises `ConfigurationError` under a GradScaler."""
        worker, local, mean = self._worker, self._local.newest, self._mean
        self._local.newest = self._mean = None
        if worker.replica.is_scaled:
            check(Combination(optimizer=type(self._optimizer), has_grad_scaler=True))
        if local is None or mean is None:
            return
        reducer = worker.means.reducer
        size = reducer.counted if isinstance(reducer, FaultTolerantSum) else worker.size
        norms = torch.tensor(values_of([*local, *mean]), dtype=torch.float64)
        own, of_mean = (some.square().sum().reshape(1) for some in norms.split([len(local), len(mean)]))
        squares = float(worker.means.of_number(own))
        if size > 1:
            self._optimizer.take_in(spread_of(squares, float(of_mean), size), size)


def measure_gains(optimizer: Optimizer, worker: StrategyWorker, observers: Observers) -> None:
    """Let `optimizer` know how the gradients of the workers differ, where it is AdaScale."""
    if isinstance(optimizer, AdaScale):
        local = LocalSquare(worker)
        gains = Gains(optimizer, worker, local)
        observers.add(local, gains)
        optimizer.register_step_pre_hook(gains.take_in)


def _norms(gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the norm of each gradient, where it lies: no GPU is waited for."""
    return [torch.linalg.vector_norm(g, dtype=widest(g.device)) for g in gradients if g is not None]
