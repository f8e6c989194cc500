"""The six files of CIFAR-10 as published, in the binary version or the python version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.workloads.cifar10 import pickled

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
"""Bytes of an image: red, green and blue, each row by row."""

TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)

_WANTED = "the CIFAR-10 binary or python version, unpacked"
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Files:
    """Where the files lie, and in which version."""

    folder: Path
    is_binary: bool
    records: int
    """Images in each file."""

    def read(self, *, train: bool) -> tuple[Tensor, Tensor]:
        """Pixels (n, 3, 32, 32) uint8 and labels (n,) int64, in the order of the files.

        Raises `ConfigurationError` for a file that is missing, cut off, or not what it should be.
        """
        parts = [self._read(self.folder / self._named(name)) for name in (TRAINING if train else TEST)]
        pixels = np.concatenate([part[0] for part in parts]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([part[1] for part in parts]).astype(np.int64)
        return torch.from_numpy(pixels), torch.from_numpy(labels)

    def missing(self) -> list[str]:
        """The names of the files that are not there."""
        names = [self._named(name) for name in (*TRAINING, *TEST)]
        return [name for name in names if not (self.folder / name).is_file()]

    def _named(self, name: str) -> str:
        return f"{name}.bin" if self.is_binary else name

    def _read(self, path: Path) -> tuple[_Bytes, _Bytes]:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"cifar10: {path} cannot be read ({error.strerror or error})") from error
        pixels, labels = self._binary(path, data) if self.is_binary else self._python(path, data)
        (wrong,) = np.nonzero(labels >= len(CLASSES))
        if len(wrong):
            raise ConfigurationError(
                f"cifar10: {path} has the label {labels[wrong[0]]} at image {wrong[0]}; labels are from 0 to "
                f"{len(CLASSES) - 1}"
            )
        return pixels, labels

    def _binary(self, path: Path, data: bytes) -> tuple[_Bytes, _Bytes]:
        """Each record is a label and an image, 3,073 bytes."""
        wanted = self.records * (1 + PIXELS)
        if len(data) != wanted:
            raise ConfigurationError(
                f"cifar10: {path} has {len(data)} bytes, and {self.records} images take {wanted}; it is cut off or no "
                "part of CIFAR-10's binary version"
            )
        table = np.frombuffer(data, np.uint8).reshape(self.records, 1 + PIXELS)
        return table[:, 1:], table[:, 0]

    def _python(self, path: Path, data: bytes) -> tuple[_Bytes, _Bytes]:
        """A pickled dictionary with "data" (an array) and "labels" (a list)."""
        try:
            found = pickled.read(data)
        except pickled.NotPlainData as error:
            raise ConfigurationError(f"cifar10: {path} was not read: it {error}") from error
        pixels, labels = (found.get("data"), found.get("labels")) if isinstance(found, dict) else (None, None)
        if not isinstance(pixels, np.ndarray) or pixels.shape != (self.records, PIXELS):
            raise ConfigurationError(
                f'cifar10: {path} has no array "data" of {self.records} x {PIXELS} bytes, as CIFAR-10\'s python version'
                " has"
            )
        return pixels, _labels(path, labels, self.records)


def _labels(path: Path, labels: Any, records: int) -> _Bytes:
    is_right = isinstance(labels, list) and len(labels) == records
    if not is_right or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise ConfigurationError(
            f'cifar10: {path} has no list "labels" of {records} small whole numbers, as CIFAR-10\'s python version has'
        )
    return np.array(labels, np.uint8)


def found_in(folder: str, records: int) -> Files:
    """The files in `folder`, or in the folder inside it that the archive unpacks to; the binary version first.

    Raises `ConfigurationError` where the folder is not given, is not there, or does not have all six files.
    """
    if not folder:
        raise ConfigurationError(f"cifar10 needs a setting folder=..., where {_WANTED}, lies")
    top = Path(folder).expanduser()
    if not top.is_dir():
        raise ConfigurationError(f"cifar10: there is no folder {top}; it should hold {_WANTED}")
    places = [
        Files(place, is_binary, records)
        for is_binary, inside in ((True, "cifar-10-batches-bin"), (False, "cifar-10-batches-py"))
        for place in (top, top / inside)
    ]
    best = min(places, key=lambda files: len(files.missing()))
    missing = best.missing()
    if len(missing) == len(TRAINING) + len(TEST):
        raise ConfigurationError(
            f"cifar10: {top} has neither data_batch_1.bin, as the binary version, nor data_batch_1, as the python "
            f"version; it should hold {_WANTED}"
        )
    if missing:
        raise ConfigurationError(f"cifar10: {best.folder} lacks {', '.join(missing)}; it should hold {_WANTED}")
    return best
