"""Real images in seconds: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra
from quorate.core.workload import Imbalance
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_images import ImageWorkload
from quorate.workloads.residual import ResidualNetwork

WIDTHS = (16, 32)
DEPTH = 1
CLASSES = 10

GREATEST = 16
"""Pixels are from 0 to this."""


@dataclass(frozen=True, kw_only=True)
class Digits(ImageWorkload):
    """A small residual network with batch norm on images of handwritten digits; 98 % within seconds.

    The images come with scikit-learn (the extra `digits`); one fifth of the images of each digit, drawn with `seed`, is
    for testing.

    Raises `MissingExtra` without scikit-learn.
    """

    name: ClassVar[str] = "digits"
    batch_size: ClassVar[int] = 32
    learning_rate: ClassVar[float] = 0.05
    epochs: ClassVar[int] = 10
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    baseline: ClassVar[str] = "0.10, one of ten classes"
    cost: ClassVar[str] = "5 ms (19,994 parameters)"
    imbalance: ClassVar[Imbalance] = "injected"

    seed: int = 0
    """Seed of the train/test split; the model has its own seed."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ConfigurationError(f"digits: seed must be from 0 to 2**63 - 1, not {self.seed}")
        check_installed()

    @cached_property
    def _digits(self) -> DigitImages:
        return read_images()

    @cached_property
    def _members(self) -> tuple[Tensor, Tensor]:
        return split(self._digits.labels, self.seed)

    def dataset(self, *, train: bool) -> Dataset[tuple[Tensor, ...]]:
        """Pairs of an image (1, 8, 8) and a label ()."""
        members = self._members[0 if train else 1]
        return TensorDataset(self._digits.images[members], self._digits.labels[members])

    def model(self, seed: int = 0) -> nn.Module:
        """A residual network of two basic blocks, 16 and 32 wide."""
        return drawn(lambda: ResidualNetwork(1, WIDTHS, DEPTH, CLASSES), seed)

    def describe(self) -> list[str]:
        training, test = self._members
        return [f"digits: {len(training)} training and {len(test)} test images of 8x8 pixels, seed {self.seed}"]


class DigitImages(NamedTuple):
    """n images, in the order of the source."""

    images: Tensor
    """(n, 1, 8, 8), float32, from 0 to 1"""
    labels: Tensor
    """(n,), int64"""


def check_installed() -> None:
    """Raises `MissingExtra` without scikit-learn."""
    if find_spec("sklearn") is None:
        raise missing_extra("digits needs scikit-learn", extra="digits", package="scikit-learn")


def read_images() -> DigitImages:
    """All 1,797 images, from the file that scikit-learn brings, in some 10 ms.

    To import scikit-learn takes a second of the processor, in every worker; that is done where the file is elsewhere.
    """
    path = _images_file()
    if path is None:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    else:
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows: Any = np.loadtxt(file, delimiter=",")
        pixels, labels = rows[:, :-1], rows[:, -1]
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / GREATEST
    return DigitImages(images, torch.tensor(labels, dtype=torch.int64))


def _images_file() -> Path | None:
    """Rows of 64 pixels and a label; None where this version of scikit-learn has it elsewhere."""
    spec = find_spec("sklearn")
    folders = [] if spec is None else spec.submodule_search_locations or []
    paths = (Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Places (int64, ascending) of training and of test images: of each class a fifth tests, drawn from `seed`."""
    random = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        is_test[members[torch.randperm(len(members), generator=random)[: len(members) // 5]]] = True
    return (~is_test).nonzero().squeeze(1), is_test.nonzero().squeeze(1)
