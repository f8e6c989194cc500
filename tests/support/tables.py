"""Models with tables whose gradients are sparse, and the bags of indices that workers draw for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.support.scene import Trainer

ROWS, WIDTH = 24, 3


class Bags(nn.Module):
    """A table that is summed by bags, another one, and a dense layer."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse, dtype=torch.float64)
        self.words = nn.Embedding(ROWS, WIDTH, sparse=sparse, padding_idx=0, dtype=torch.float64)
        self.linear = nn.Linear(WIDTH, 1, dtype=torch.float64)

    def forward(self, indices: Tensor) -> Tensor:
        return self.linear(self.bags(indices) + self.words(indices[:, 0])).square()


class Words(nn.Module):
    """One table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, WIDTH, sparse=True, dtype=torch.float64)

    def forward(self, indices: Tensor) -> Tensor:
        return (self.words(indices).sum(1) - 1).square()


def drawn(step: int, rank: int, count: int = 4) -> Tensor:
    """Return bags of indices; some of them are in several bags, and on several workers."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, min(ROWS, 5 + 5 * rank), (count, 3), generator=generator)


def loss_of(model: nn.Module, step: int, rank: int, count: int = 4) -> Tensor:
    """Return the loss of one worker's step."""
    return model(drawn(step, rank, count)).mean()


def of_rank(trainer: Trainer) -> Tensor:
    """Return the loss of this worker's step."""
    return loss_of(trainer.model, trainer.step, trainer.rank)
