"""Batches of labelled sequences of unequal length, and what a classifier makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Optimizer

from quorate.core.workload import Workload


class Sequences(NamedTuple):
    """A batch of n sequences, padded to its own longest."""

    items: Tensor
    """(n, longest, ...): words or frames, 0 after the end"""
    lengths: Tensor
    """(n,), int64, each at least 1"""
    labels: Tensor
    """(n,), int64"""

    @property
    def tokens(self) -> int:
        """The tokens that an LSTM reads: n times the longest sequence, padding included."""
        return self.items.shape[0] * self.items.shape[1]

    def to(self, device: str | torch.device) -> Self:
        return self._replace(
            items=self.items.to(device), lengths=self.lengths.to(device), labels=self.labels.to(device)
        )


class SequenceWorkload(Workload[Sequences]):
    """Base of workloads of labelled sequences: all except data and model."""

    def collate(self, examples: Sequence[tuple[Tensor, int]]) -> Sequences:
        items, labels = zip(*examples, strict=True)
        lengths = torch.tensor([len(each) for each in items])
        return Sequences(pad_sequence(list(items), batch_first=True), lengths, torch.tensor(labels))

    def loss(self, model: nn.Module, batch: Sequences) -> Tensor:
        """The mean cross-entropy of the classes."""
        return cross_entropy(model(batch.items, batch.lengths), batch.labels)

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Sequences) -> dict[str, float]:
        """How many sequences had their class in the first place ("top1"), or among the first five ("top5")."""
        scores: Tensor = model(batch.items, batch.lengths)
        best = scores.topk(min(5, scores.shape[1]), dim=1).indices
        hits = best == batch.labels.unsqueeze(1)
        return {
            "top1": float(hits[:, 0].sum()),
            "top5": float(hits.sum()),
            "examples": float(len(batch.labels)),
        }

    def optimizer(self, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
        """AdamW."""
        return AdamW(model.parameters(), lr=self.learning_rate if learning_rate is None else learning_rate)


def at_the_ends(states: Tensor, lengths: Tensor) -> Tensor:
    """Return the last state of each sequence: (n, width) from states (n, longest, width)."""
    ends = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
    return states.gather(1, ends).squeeze(1)
