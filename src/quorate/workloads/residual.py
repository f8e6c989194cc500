"""Residual networks of basic blocks for small images, as several workloads use them at several sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, activation after the sum (He et al., CVPR 2016, figure 2).

    The shortcut is a 1x1 convolution with batch norm where `projects`, else the input itself.
    """

    def __init__(self, channels: int, width: int, stride: int, *, projects: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))
            if projects
            else nn.Identity()
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations of the block for `images` (n, channels, height, width)."""
        inner: Tensor = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


class ResidualNetwork(nn.Module):
    """A 3x3 convolution, one stage of `depth` blocks per width, the mean over all places, a linear layer.

    The first block of *every* stage has a projection, the first stage included; every later stage halves both sides.
    Convolutions have no bias and begin as in He et al. (ICCV 2015), normal with variance 2/(outputs x 9).
    """

    def __init__(self, channels: int, widths: Sequence[int], depth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(widths[0])
        blocks = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(BasicBlock(before, width, stride, projects=place == 0))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Scores (n, classes) of `images` (n, channels, height, width)."""
        inner = self.blocks(torch.relu(self.stem_norm(self.stem(images))))
        scores: Tensor = self.output(inner.mean(dim=(2, 3)))
        return scores
