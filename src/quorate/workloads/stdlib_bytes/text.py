"""The bytes of the standard library's source files, one tenth of the files set apart for testing."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders that are not walked."""
END = b"\0"
"""Between two files."""


@dataclass(frozen=True)
class Text:
    """All bytes of the files for training, or for testing, in the order of their paths."""

    numbers: Tensor
    """uint8, of shape (bytes,)."""
    files: int


def standard_library() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def read(folder: Path, most: int | None) -> tuple[Text, Text]:
    """For training and for testing; files in the order of a hash of their paths, until `most` bytes are read."""
    chosen: list[tuple[str, bytes]] = []
    total = 0
    for path in sorted(_python_files(folder), key=_hash):
        if most is not None and total >= most:
            break
        chosen.append((path, (folder / path).read_bytes() + END))
        total += len(chosen[-1][1])
    is_test = [int(_hash(path)[-8:], 16) % 10 == 0 for path, _ in chosen]
    return tuple(  # type: ignore[return-value]
        _text(sorted(path for path, tests in zip(chosen, is_test, strict=True) if tests == wanted))
        for wanted in (False, True)
    )


def _text(files: list[tuple[str, bytes]]) -> Text:
    whole = bytearray(b"".join(text for _, text in files))
    return Text(torch.frombuffer(whole, dtype=torch.uint8) if whole else torch.zeros(0, dtype=torch.uint8), len(files))


def _hash(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def _python_files(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        below = Path(place).relative_to(folder)
        yield from ((below / file).as_posix() for file in sorted(files) if file.endswith(".py"))
