"""Files of numbers: arrays (`.npy`), tokens (`.bin`), and named tensors (`.safetensors`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.data.files.kinds import Kind, Opened

_TOKENS = ("uint8", "uint16", "int32", "uint32", "int64")


class _Rows:
    """The rows of an array that is mapped into memory."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Tensor:
        return torch.from_numpy(np.array(self._rows[number]))


@dataclass(frozen=True, kw_only=True)
class Npy(Kind):
    """Arrays as numpy saves them; an example is a row, a tensor."""

    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    def open(self, path: Path, name: str) -> Opened:
        rows = np.load(path, mmap_mode="r")
        if rows.ndim == 0:
            raise ValueError("it holds a single number and no rows")
        return _Rows(rows)


class _Windows:
    """Successive windows of tokens; each begins with the last token of the one before."""

    def __init__(self, tokens: Any, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def __getitem__(self, number: int) -> Tensor:
        begin = number * self._length
        return torch.from_numpy(self._tokens[begin : begin + self._length + 1].astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Tokens(Kind):
    """Tokens as plain numbers of one size, without a header; an example is a window of `length` + 1 of them (int64)."""

    suffixes: ClassVar[tuple[str, ...]] = (".bin",)
    length: int = 0
    """Tokens that a model reads at a time; a window has one more, since each token is predicted from those before it.
    """
    dtype: str = "uint16"
    """The type of a token: "uint8", "uint16", "int32", "uint32" or "int64"."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigurationError(
                f"files of tokens need length, the tokens per window, of at least 1; it is {self.length}"
            )
        if self.dtype not in _TOKENS:
            raise ConfigurationError(f"dtype is {self.dtype!r}; tokens are written as one of {', '.join(_TOKENS)}")

    def open(self, path: Path, name: str) -> Opened:
        size, each = path.stat().st_size, np.dtype(self.dtype).itemsize
        if size % each:
            raise ValueError(f"its {size} bytes are not a multiple of the token size, {each}")
        tokens = np.memmap(path, dtype=self.dtype, mode="r") if size else np.empty(0, self.dtype)
        return _Windows(tokens, self.length)


class _Named:
    """Rows of named tensors, read one by one."""

    def __init__(self, path: Path) -> None:
        import safetensors

        opened: Any = safetensors.safe_open
        self._file = opened(path, framework="pt")
        self._names = sorted(self._file.keys())
        lengths = {name: self._file.get_slice(name).get_shape()[:1] for name in self._names}
        if not self._names or [] in lengths.values() or len({tuple(each) for each in lengths.values()}) > 1:
            raise ValueError(f"its tensors have no rows, or different numbers of rows: {lengths}")
        self._length = next(iter(lengths.values()))[0]

    def __len__(self) -> int:
        return int(self._length)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {name: self._file.get_slice(name)[number : number + 1].squeeze(0) for name in self._names}


@dataclass(frozen=True, kw_only=True)
class Safetensors(Kind):
    """Named tensors with equally many rows; an example is a row of each, by name."""

    suffixes: ClassVar[tuple[str, ...]] = (".safetensors",)

    def open(self, path: Path, name: str) -> Opened:
        return _Named(path)
