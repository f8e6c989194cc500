"""Folders of images, a folder for each class; and images as tensors."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch
from torch import Tensor

from quorate.core.errors import MissingExtra
from quorate.data.files.kinds import Kind, Opened

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def image_from(data: bytes) -> Tensor:
    """Return red, green and blue of an image: uint8 of shape (3, height, width). Raises `MissingExtra`."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("images need Pillow; install it with: pip install Pillow") from None
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGB")
        flat = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8)
        return flat.view(pixels.height, pixels.width, 3).permute(2, 0, 1).contiguous()


class _One:
    """An image and its class."""

    def __init__(self, path: Path, label: int) -> None:
        self._path, self._label = path, label

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return image_from(self._path.read_bytes()), self._label


@dataclass(frozen=True, kw_only=True)
class Images(Kind):
    """Images in folders, one for each class; an example is the image, and the number of its class in their order."""

    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    classes: tuple[str, ...] = ()
    """The names of the folders, in order."""

    def prepared(self, names: Sequence[str]) -> Images:
        return Images(classes=self.classes or tuple(sorted({_class_of(name) for name in names})))

    def count(self, path: Path) -> int:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        return 1

    def open(self, path: Path, name: str) -> Opened:
        return _One(path, self.classes.index(_class_of(name)))


def _class_of(name: str) -> str:
    return str(PurePosixPath(name).parent.name)


def decoded(suffix: str, data: bytes) -> Any:
    """Return a decoded member of an archive, by its suffix; as bytes where that is unknown."""
    return image_from(data) if suffix in SUFFIXES else data
