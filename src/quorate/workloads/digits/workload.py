"""Real images in seconds: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from quorate.core.errors import ConfigurationError
from quorate.workloads.digits import images
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_images import ImageWorkload
from quorate.workloads.residual import ResidualNetwork

WIDTHS = (16, 32)
DEPTH = 1
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Digits(ImageWorkload):
    """A small residual network with batch norm reads handwritten digits; real images, seconds to 98 %.

    The images come with scikit-learn, which is the extra `digits`; of each digit a fifth tests, drawn from `seed`.

    Raises `MissingExtra` without scikit-learn.
    """

    name: ClassVar[str] = "digits"
    batch_size: ClassVar[int] = 32
    learning_rate: ClassVar[float] = 0.05
    epochs: ClassVar[int] = 10
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True

    seed: int = 0
    """Of the split; the model has its own."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ConfigurationError(f"digits: seed must be from 0 to 2**63 - 1, not {self.seed}")
        images.check_installed()

    @cached_property
    def _digits(self) -> images.Digits:
        return images.read()

    @cached_property
    def _members(self) -> tuple[Tensor, Tensor]:
        return images.split(self._digits.labels, self.seed)

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
