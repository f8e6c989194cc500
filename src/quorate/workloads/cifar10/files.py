"""The six files of CIFAR-10's binary version, as published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.errors import ConfigurationError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
"""Bytes of an image: red, green and blue, each row by row."""

TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)

_WANTED = "the CIFAR-10 binary version, unpacked"
_Bytes = NDArray[np.uint8]


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
