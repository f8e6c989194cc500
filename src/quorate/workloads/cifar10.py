"""Small colour photographs in ten classes, with the ResNet-32 of eager-SGD's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.data import Dataset

from quorate.core.draws import mixed
from quorate.core.errors import ConfigurationError
from quorate.core.workload import Imbalance
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_images import Images, ImageWorkload
from quorate.workloads.residual import ResidualNetwork

WIDTHS = (16, 32, 64)
DEPTH = 5

MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)
"""Means and deviations of red, green and blue over the training images, pixels from 0 to 1."""

MARGIN = 4
"""Pixels of black on every side before the crop."""

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
"""Bytes of an image: red, green and blue, each row by row."""

TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)

_WANTED = "the CIFAR-10 binary version, unpacked"
_Bytes = NDArray[np.uint8]


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
    """ResNet-32 (467,194 parameters) on CIFAR-10, read from the published files.

    Training images are padded by 4 pixels and cropped at random, and half of them are mirrored. The crops depend on
    `seed` and on the images of a batch only. Shuffled epochs have different crops, and equal batches have equal crops,
    in any process and after any interruption. Epochs in a fixed order repeat their crops.

    Raises `ConfigurationError` where the folder is not given or does not have the files, and, when the data are asked
    for, for files that are not what they should be.
    """

    name: ClassVar[str] = "cifar10"
    batch_size: ClassVar[int] = 128
    learning_rate: ClassVar[float] = 0.1
    epochs: ClassVar[int] = 200
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    baseline: ClassVar[str] = "0.10, one of ten equal classes"
    cost: ClassVar[str] = "0.7 s (467,194 parameters)"
    imbalance: ClassVar[Imbalance] = "injected"

    folder: str = ""
    """Folder of the unpacked binary version of CIFAR-10; required."""
    augment: bool = True
    """Whether training images are cropped and mirrored at random."""
    seed: int = 0
    """Seed of the crops; the model has its own seed."""
    records: int = 10_000
    """Number of images in each of the six files; other values are for tests."""

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


def augmented(pixels: Tensor, seed: int, indices: Sequence[int]) -> Tensor:
    """Return a random crop of each padded image (n, channels, height, width), of its own size; half are mirrored.

    What is drawn depends on `seed` and on all `indices`, in their order.
    """
    number, channels, height, width = pixels.shape
    random = torch.Generator().manual_seed(mixed(seed, *indices))
    top, left = torch.randint(0, 2 * MARGIN + 1, (2, number, 1), generator=random)
    is_mirrored = torch.randint(0, 2, (number, 1), generator=random).bool()
    rows = top + torch.arange(height)
    columns = left + torch.where(is_mirrored, torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = pad(pixels, (MARGIN, MARGIN, MARGIN, MARGIN))
    return padded[
        torch.arange(number).view(-1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1),
        rows.view(number, 1, height, 1),
        columns.view(number, 1, 1, width),
    ]


@dataclass(frozen=True)
class Files:
    """The binary files of CIFAR-10."""

    folder: Path
    records: int
    """Images in each file."""

    def read(self, *, train: bool) -> tuple[Tensor, Tensor]:
        """Pixels (n, 3, 32, 32) uint8 and labels (n,) int64, in the order of the files.

        Raises `ConfigurationError` for a file that is missing, cut off, or not what it should be.
        """
        parts = [self._read(self.folder / f"{name}.bin") for name in (TRAINING if train else TEST)]
        pixels = np.concatenate([part[0] for part in parts]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([part[1] for part in parts]).astype(np.int64)
        return torch.from_numpy(pixels), torch.from_numpy(labels)

    def missing(self) -> list[str]:
        """The names of the files that are not there."""
        names = [f"{name}.bin" for name in (*TRAINING, *TEST)]
        return [name for name in names if not (self.folder / name).is_file()]

    def _read(self, path: Path) -> tuple[_Bytes, _Bytes]:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"cifar10: {path} cannot be read ({error.strerror or error})") from error
        pixels, labels = self._records(path, data)
        (wrong,) = np.nonzero(labels >= len(CLASSES))
        if len(wrong):
            raise ConfigurationError(
                f"cifar10: {path} has the label {labels[wrong[0]]} at image {wrong[0]}; labels are from 0 to "
                f"{len(CLASSES) - 1}"
            )
        return pixels, labels

    def _records(self, path: Path, data: bytes) -> tuple[_Bytes, _Bytes]:
        """Each record is a label and an image, 3,073 bytes."""
        wanted = self.records * (1 + PIXELS)
        if len(data) != wanted:
            raise ConfigurationError(
                f"cifar10: {path} has {len(data)} bytes, and {self.records} images take {wanted}; it is cut off or no "
                "part of CIFAR-10's binary version"
            )
        table = np.frombuffer(data, np.uint8).reshape(self.records, 1 + PIXELS)
        return table[:, 1:], table[:, 0]


def found_in(folder: str, records: int) -> Files:
    """The files in `folder`, or in the folder inside it that the archive unpacks to.

    Raises `ConfigurationError` if `folder` is empty, does not exist, or lacks one of the six files. The python version
    is refused: it is pickled, and unpickling executes what a file says.
    """
    if not folder:
        raise ConfigurationError(f"cifar10 needs a setting folder=..., where {_WANTED}, lies")
    top = Path(folder).expanduser()
    if not top.is_dir():
        raise ConfigurationError(f"cifar10: there is no folder {top}; it should hold {_WANTED}")
    candidates = [Files(place, records) for place in (top, top / "cifar-10-batches-bin")]
    best = min(candidates, key=lambda files: len(files.missing()))
    missing = best.missing()
    if len(missing) == len(TRAINING) + len(TEST):
        is_python = any((top / inside / TRAINING[0]).is_file() for inside in (".", "cifar-10-batches-py"))
        reason = "holds the python version, which is pickled" if is_python else "has no data_batch_1.bin"
        raise ConfigurationError(f"cifar10: {top} {reason}; it should hold {_WANTED}")
    if missing:
        raise ConfigurationError(f"cifar10: {best.folder} lacks {', '.join(missing)}; it should hold {_WANTED}")
    return best
