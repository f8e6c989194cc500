"""Small colour photographs in ten classes, with the ResNet-32 of eager-SGD's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.workloads.cifar10.crops import augmented
from quorate.workloads.cifar10.files import CLASSES, Files, found_in
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_images import Images, ImageWorkload
from quorate.workloads.residual import ResidualNetwork

WIDTHS = (16, 32, 64)
DEPTH = 5

MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)
"""Means and deviations of red, green and blue over the training images, pixels from 0 to 1."""


class Photographs(Dataset[tuple[Tensor, Tensor]]):
    """Images, normalised; with a `seed` cropped and mirrored, differently in every batch they are fetched in."""

    def __init__(self, pixels: Tensor, labels: Tensor, seed: int | None) -> None:
        self._pixels = pixels
        self._labels = labels
        self._seed = seed
        self._means = torch.tensor(MEANS).view(1, 3, 1, 1)
        self._deviations = torch.tensor(DEVIATIONS).view(1, 3, 1, 1)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, 32, 32) and its label (); the same whenever it is fetched alone."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Images:
        """A batch, fetched whole; torch's DataLoader asks so. The crops are drawn from the seed and `indices`."""
        wanted = torch.tensor(indices)
        pixels = self._pixels[wanted]
        if self._seed is not None:
            pixels = augmented(pixels, self._seed, indices)
        return Images((pixels / 255 - self._means) / self._deviations, self._labels[wanted])


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageWorkload):
    """ResNet-32 (467,194 parameters) on CIFAR-10's photographs, read from the published files.

    Training images are cropped at random out of a margin of 4 pixels, and half of them mirrored. That is drawn from
    `seed` and from which images a batch consists of: shuffled epochs so give other crops, equal batches the same ones,
    in any process and after any interruption; epochs in one fixed order repeat their crops.

    Raises `ConfigurationError` where the folder is not given or does not have the files, and, when the data are asked
    for, for files that are not what they should be.
    """

    name: ClassVar[str] = "cifar10"
    batch_size: ClassVar[int] = 128
    learning_rate: ClassVar[float] = 0.1
    epochs: ClassVar[int] = 200
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True

    folder: str = ""
    """Where CIFAR-10's binary version lies, unpacked; it must be given."""
    augment: bool = True
    """Whether training images are cropped and mirrored at random."""
    seed: int = 0
    """Of the crops; the model has its own."""
    records: int = 10_000
    """Images in each of the six files; other numbers are for tests."""

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ConfigurationError(f"cifar10: records must be at least 1, not {self.records}")
        found_in(self.folder, self.records)

    @cached_property
    def _files(self) -> Files:
        return found_in(self.folder, self.records)

    @cached_property
    def _training(self) -> tuple[Tensor, Tensor]:
        return self._files.read(train=True)

    @cached_property
    def _test(self) -> tuple[Tensor, Tensor]:
        return self._files.read(train=False)

    def dataset(self, *, train: bool) -> Photographs:
        """Pairs of an image (3, 32, 32) and a label (); kept in memory, 3 KB each."""
        pixels, labels = self._training if train else self._test
        return Photographs(pixels, labels, self.seed if train and self.augment else None)

    def model(self, seed: int = 0) -> nn.Module:
        """ResNet-32: 16, 32 and 64 wide, five basic blocks each, with a projection at the start of every stage."""
        return drawn(lambda: ResidualNetwork(3, WIDTHS, DEPTH, len(CLASSES)), seed)

    def describe(self) -> list[str]:
        crops = f"crops of seed {self.seed}" if self.augment else "no crops"
        return [f"cifar10: {5 * self.records} training and {self.records} test images of 32x32 pixels, {crops}"]
