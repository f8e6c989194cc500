"""Batches of points with targets, as regressions have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from quorate.core.workload import Workload


class Points(NamedTuple):
    """A batch of n points."""

    inputs: Tensor
    """(n, features), float32"""
    targets: Tensor
    """(n,), float32"""

    def to(self, device: str | torch.device) -> Self:
        """The same points on `device`."""
        return self._replace(inputs=self.inputs.to(device), targets=self.targets.to(device))


class PointWorkload(Workload[Points]):
    """How points become batches, and plain SGD."""

    def collate(self, examples: Sequence[tuple[Tensor, ...]]) -> Points:
        """A batch that was fetched whole is left as it is."""
        if isinstance(examples, Points):
            return examples
        inputs, targets = zip(*examples, strict=True)
        return Points(torch.stack(inputs), torch.stack(targets))

    def optimizer(self, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
        """Plain SGD."""
        return SGD(model.parameters(), lr=self.learning_rate if learning_rate is None else learning_rate)
