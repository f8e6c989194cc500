"""The learning rate of steps with fewer workers than at the start, scaled by their batch.

With k of W workers in a step, the rate is multiplied by k / W if a step is proportional to its gradient (Goyal et al.
2017, arXiv 1706.02677). Else it is multiplied by the root of k / W (Krizhevsky 2014, arXiv 1404.5997). The options of
the optimizer, and its schedulers, keep their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from quorate.core.contracts import Wire
from quorate.core.telling import tell
from quorate.optim.rates import scale_of, scaling_of
from quorate.replica.shared_step import SharedOptions


class ShrunkRate:
    """The factor of the rates of one worker's steps. Raises `ConfigurationError` for an unknown optimizer."""

    def __init__(self, optimizer: Optimizer, plain: type[Optimizer], wire: Wire) -> None:
        self._optimizer, self._wire, self._told = optimizer, wire, wire.size
        self._rule = scaling_of([kind.__name__ for kind in plain.__mro__])

    def factor(self, workers: int) -> float:
        """Return the factor for a step of so many `workers`; the first one that lives reports a change."""
        factor = scale_of(self._rule, workers, self._wire.size)
        if workers != self._told:
            self._told = workers
            if self._wire.rank == self._wire.alive[0]:
                rates = (
                    "the learning rates of the script count" if factor == 1 else f"learning rates times {factor:.3g}"
                )
                tell(f"quorate: steps have the batches of {workers} of {self._wire.size} workers now; {rates}\n")
        return factor

    @contextmanager
    def scaled(self, options: Any, workers: int) -> Iterator[Any]:
        """Yield the `options` of a round, scaled; where there are none (None), scale the optimizer's own inside."""
        factor = self.factor(workers)
        groups = self._optimizer.param_groups if options is None and factor != 1 else []
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            yield options if options is None or factor == 1 else _scaled(options, factor)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def _scaled(options: Any, factor: float) -> Any:
    if isinstance(options, SharedOptions):
        return replace(options, options=_scaled(options.options, factor))
    return [{**group, "lr": group["lr"] * factor} if "lr" in group else group for group in options]
