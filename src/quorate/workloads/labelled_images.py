"""Batches of labelled images, and what a classifier makes of them: what all image workloads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from quorate.core.workload import Workload
from quorate.workloads.evaluation import in_evaluation


class Images(NamedTuple):
    """A batch of n images."""

    images: Tensor
    """(n, channels, height, width), float32"""
    labels: Tensor
    """(n,), int64"""

    def to(self, device: str | torch.device) -> Self:
        return self._replace(images=self.images.to(device), labels=self.labels.to(device))


class ImageWorkload(Workload[Images]):
    """Base of workloads of labelled images: all except data and model."""

    def collate(self, examples: Sequence[tuple[Tensor, ...]]) -> Images:
        """Pairs of an image and a label as one batch; a batch that was fetched whole is left as it is."""
        if isinstance(examples, Images):
            return examples
        images, labels = zip(*examples, strict=True)
        return Images(torch.stack(images), torch.stack(labels))

    def loss(self, model: nn.Module, batch: Images) -> Tensor:
        """The mean cross-entropy of the labels."""
        return cross_entropy(model(batch.images), batch.labels)

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Images) -> dict[str, float]:
        """How many images were put in their class ("top1"), and their summed "cross_entropy".

        The model is in evaluation mode for it (batch norm uses its running statistics), and then as it was.
        """
        with in_evaluation(model):
            scores: Tensor = model(batch.images)
        return {
            "top1": float((scores.argmax(dim=1) == batch.labels).sum()),
            "cross_entropy": float(cross_entropy(scores, batch.labels, reduction="sum")),
            "examples": float(len(batch.labels)),
        }

    def optimizer(self, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
        """SGD with momentum 0.9 and weight decay 1e-4."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
