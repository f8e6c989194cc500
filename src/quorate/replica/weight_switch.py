"""The switch of an optimizer between the weights that it trains and those to be evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.local_tensor import local


class WeightSwitch:
    """The switch of one optimizer, such as a schedule-free one; rounds and means are of the trained weights.

    `eval()` followed by `train()` rounds. Replicas that switched at different times, or only on one worker, would
    diverge, so `train()` restores the exact bits. Cost: a copy of the parameters while the others are shown.
    """

    def __init__(self, optimizer: Optimizer, plain: type[Optimizer]) -> None:
        self._optimizer = optimizer
        self._plain: Any = plain
        self._before: list[tuple[Tensor, Tensor, int]] = []
        """Each parameter that `eval()` has written, its numbers before, and its version after it."""
        self.is_eval = False
        """Whether the script's last call was `eval()`."""

    def eval(self) -> Any:
        """Show the weights to be evaluated."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        if self._before:
            parameters = []  # already shown
        versions = [p._version for p in parameters]
        numbers = [local(p).detach().clone() for p in parameters]
        returned, self.is_eval = self._plain.eval(self._optimizer), True
        self._before += [
            (p, x, p._version) for p, x, was in zip(parameters, numbers, versions, strict=True) if p._version != was
        ]
        return returned

    def train(self) -> Any:
        """Restore the trained weights, to the bit unless the script has written into the others."""
        before, self._before, self.is_eval = self._before, [], False
        are_unwritten = all(p._version == version for p, _, version in before)
        returned = self._plain.train(self._optimizer)
        if are_unwritten:
            with torch.no_grad():
                for p, numbers, _ in before:
                    local(p).copy_(numbers)
        return returned

    @contextmanager
    def in_training(self) -> Iterator[None]:
        """Show the trained weights inside, and restore the shown ones on exit."""
        if not self.is_eval:
            yield
            return
        self.train()
        try:
            yield
        finally:
            self.eval()
