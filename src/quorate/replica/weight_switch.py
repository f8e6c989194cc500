"""Optimizers with `train()` and `eval()`, which exchange the weights that are trained for those to be evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.local_tensor import local


class WeightSwitch:
    """The switch of one optimizer, such as a schedule-free one; rounds and means are of the weights that are trained.

    `eval()` followed by `train()` rounds. Replicas that switched at different times, or only on one worker, would part,
    so `train()` brings back the very bits. Cost: a copy of the parameters while the others are shown.
    """

    def __init__(self, optimizer: Optimizer, plain: type[Optimizer]) -> None:
        self._optimizer = optimizer
        self._plain: Any = plain
        self._before: list[tuple[Tensor, Tensor, int]] = []
        """Each parameter that `eval()` has written, its numbers before it, and its version after it."""
        self.is_eval = False
        """Whether the script has called `eval()` last."""

    def eval(self) -> Any:
        """Show the weights to be evaluated."""
        every = [p for group in self._optimizer.param_groups for p in group["params"]]
        if self._before:
            every = []  # they are shown
        versions = [p._version for p in every]
        numbers = [local(p).detach().clone() for p in every]
        returned, self.is_eval = self._plain.eval(self._optimizer), True
        self._before += [
            (p, x, p._version) for p, x, was in zip(every, numbers, versions, strict=True) if p._version != was
        ]
        return returned

    def train(self) -> Any:
        """Bring back the weights that are trained, to the bit unless the script has written into the others."""
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
        """Inside, parameters are the weights that are trained; after it, those that were shown are shown again."""
        if not self.is_eval:
            yield
            return
        self.train()
        try:
            yield
        finally:
            self.eval()
