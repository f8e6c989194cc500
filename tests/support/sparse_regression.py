"""A sparse convex problem: logistic regression in which each example touches a few of many rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

ROWS, TOUCHED, EXAMPLES, BATCH = 300, 4, 256, 4
UNSEEN = 280
"""Rows from here on are in no example."""


@dataclass
class Problem:
    """`rows` (examples, `TOUCHED`) and labels, of which a few are wrong: the least loss is above 0."""

    rows: Tensor
    labels: Tensor

    @classmethod
    def drawn(cls, seed: int = 0) -> Problem:
        draw = torch.Generator().manual_seed(seed)
        rows = torch.randint(0, UNSEEN, (EXAMPLES, TOUCHED), generator=draw)
        right = torch.randn(ROWS, generator=draw)[rows].sum(1) > 0
        wrong = torch.rand(EXAMPLES, generator=draw) < 0.05
        return cls(rows, (right ^ wrong).float())

    def loss(self, model: nn.Module, examples: Tensor | None = None) -> Tensor:
        """Of these examples, or all, with a little decay of the rows that they touch."""
        which = torch.arange(EXAMPLES) if examples is None else examples
        rows = self.rows[which]
        logits = model(rows).squeeze(1)
        return binary_cross_entropy_with_logits(logits, self.labels[which])


def linear(*, sparse: bool = True, seed: int = 0) -> nn.EmbeddingBag:
    """The model: a number for each row; `sparse`: so are its gradients."""
    model = nn.EmbeddingBag(ROWS, 1, mode="sum", sparse=sparse)
    with torch.no_grad():
        model.weight.copy_(0.01 * torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(seed)))
    return model


def batch(step: int, rank: int, size: int) -> Tensor:
    """The examples of a step of a worker: each comes once in every `EXAMPLES / BATCH` of all workers' steps."""
    number = step * size + rank
    draw = torch.Generator().manual_seed(number * BATCH // EXAMPLES)
    order = torch.randperm(EXAMPLES, generator=draw)
    first = number * BATCH % EXAMPLES
    return order[first : first + BATCH]
