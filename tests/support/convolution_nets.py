"""Small convolutional networks, written as the large ones are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def _conv(takes: int, gives: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(takes, gives, kernel, stride, kernel // 2, bias=False)


class Basic(nn.Module):
    """Two convolutions beside what it is given (He et al. 2016)."""

    expansion = 1

    def __init__(self, takes: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(takes, width, 3, stride), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or takes != width:
            self.downsample = nn.Sequential(_conv(takes, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += beside
        found: Tensor = self.relu(out)
        return found


class Bottleneck(nn.Module):
    """Three of them, the one in the middle in groups where there are several (Xie et al. 2017)."""

    expansion = 4

    def __init__(self, takes: int, width: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        gives = self.expansion * width
        self.conv1, self.bn1 = _conv(takes, width, 1), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, gives, 1), nn.BatchNorm2d(gives)
        self.downsample: nn.Module | None = None
        if stride != 1 or takes != gives:
            self.downsample = nn.Sequential(_conv(takes, gives, 1, stride), nn.BatchNorm2d(gives))

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + beside)


class Residual(nn.Module):
    """The layers of a ResNet-18, with fewer channels."""

    def __init__(self, block: type[Basic] | type[Bottleneck] = Basic, blocks: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        width = self.takes = 4
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._layer(block, width, blocks[0], 1)
        self.layer2 = self._layer(block, 2 * width, blocks[1], 2)
        self.layer3 = self._layer(block, 4 * width, blocks[2], 2)
        self.layer4 = self._layer(block, 8 * width, blocks[3], 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8 * width * block.expansion, 6)

    def _layer(self, block: type[Basic] | type[Bottleneck], width: int, count: int, stride: int) -> nn.Sequential:
        made = []
        for number in range(count):
            made.append(block(self.takes, width, stride if number == 0 else 1))
            self.takes = width * block.expansion
        return nn.Sequential(*made)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        found: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return found


class Recalculated(Residual):
    """Some of whose activations are calculated again for the backward pass; its code asks for numbers."""

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) == 0.0:
            return x
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = checkpoint(self.layer2, checkpoint(self.layer1, x, use_reentrant=False), use_reentrant=False)
        x = self.layer4(self.layer3(x))
        found: Tensor = self.fc(self.avgpool(x).flatten(1))
        return found


class Plain(nn.Module):
    """As a VGG with norms, of which one is over groups, and biases (Simonyan and Zisserman 2015)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        takes = 3
        for gives in (4, 8, 0, 8, 12, 0):
            if gives:
                norm = nn.GroupNorm(4, gives) if gives == 12 else nn.BatchNorm2d(gives)
                layers += [nn.Conv2d(takes, gives, 3, padding=1), norm, nn.ReLU(inplace=True)]
                takes = gives
            else:
                layers.append(nn.MaxPool2d(2, 2))
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((3, 2))
        self.classifier = nn.Sequential(
            nn.Linear(12 * 6, 16), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(16, 16), nn.ReLU(True), nn.Linear(16, 6)
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return found


def groups() -> nn.Module:
    """Blocks with a convolution in groups, or in as many as there are channels, and a transposed one."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 1),
        Bottleneck(8, 8, 1, groups=4),
        Bottleneck(32, 8, 2, groups=8),
        nn.ConvTranspose2d(32, 8, 2, 2),
        nn.SiLU(),
        nn.Conv2d(8, 6, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
