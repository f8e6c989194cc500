"""Which examples a worker computes in an epoch: pure functions of (number of examples, seed, epoch, rank, size)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def epoch_order(examples: int, *, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """The order in which an epoch goes through all examples: a permutation of 0 … examples−1 (int64).

    Drawn from seed + epoch as in torch's DistributedSampler, so it is the same on every worker and the same that a
    DDP script saw. Consequence, also torch's: (seed 0, epoch 1) and (seed 1, epoch 0) are one order. Not shuffled,
    it is 0, 1, 2, …
    """
    if not shuffle:
        return torch.arange(examples)
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed + epoch))


@dataclass(frozen=True, kw_only=True)
class StaticShare:
    """DDP's equal split: of each epoch's order, worker `rank` of `size` takes every `size`-th example.

    Every worker has equally many. Where the number of examples is no multiple of `size`, the order is padded by
    wrapping round (some examples come twice), or cut with `drop_last` (some do not come in this epoch).
    Equal to `torch.utils.data.DistributedSampler` index by index.
    """

    rank: int
    size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def length(self, examples: int) -> int:
        """How many examples each worker has in an epoch over `examples`."""
        return examples // self.size if self.drop_last else math.ceil(examples / self.size)

    def indices(self, examples: int, epoch: int) -> Tensor:
        """The examples of this worker in this epoch, in its order: int64 of shape (length(examples),)."""
        order = epoch_order(examples, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        places = self.rank + self.size * torch.arange(self.length(examples))
        return order[places % examples]
