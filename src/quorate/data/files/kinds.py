"""Kinds of files: images in a folder for each class, arrays, tokens, named tensors, tables, archives of examples."""

from __future__ import annotations

import bisect
import io
import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_TOKENS = ("uint8", "uint16", "int32", "uint32", "int64")
KEY = "__key__"


class Opened(Protocol):
    """A file whose examples can be read, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...


class Kind(ABC):
    """A reader of files of one kind. A frozen dataclass: its fields are the options of `quorate.files`."""

    suffixes: ClassVar[tuple[str, ...]]
    """Suffixes of the names of such files."""

    def prepared(self, names: Sequence[str]) -> Kind:
        """Return the kind for these files, by their names below the given folder."""
        return self

    def count(self, path: Path) -> int:
        """Return how many examples are in a file; any error means that it is damaged."""
        return len(self.open(path, ""))

    @abstractmethod
    def open(self, path: Path, name: str) -> Opened:
        """Return the examples of a file. `path` may be a copy of it, `name` is its own."""


def image_from(data: bytes) -> Tensor:
    """Return red, green and blue of an image: uint8 of shape (3, height, width). Raises `MissingExtra`."""
    try:
        from PIL import Image
    except ImportError:
        raise missing_extra("images need Pillow", extra="images", package="Pillow") from None
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGB")
        flat = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8)
        return flat.view(pixels.height, pixels.width, 3).permute(2, 0, 1).contiguous()


class _Image:
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
        return _Image(path, self.classes.index(_class_of(name)))


def _class_of(name: str) -> str:
    return str(PurePosixPath(name).parent.name)


def decoded(suffix: str, data: bytes) -> Any:
    """Return a decoded member of an archive, by its suffix; as bytes where that is unknown."""
    return image_from(data) if suffix in SUFFIXES else data


class _ArrayRows:
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
        return _ArrayRows(rows)


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


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("parquet files need pyarrow", extra="parquet", package="pyarrow") from None
    return pyarrow.parquet


class _TableRows:
    """The rows of a table. The group of rows that was read last is kept, as a file is read in groups."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._file = _parquet().ParquetFile(path)
        about = self._file.metadata
        self._ends: list[int] = []
        for group in range(about.num_row_groups):
            self._ends.append((self._ends[-1] if self._ends else 0) + about.row_group(group).num_rows)
        self._columns = list(columns) or None
        self._group, self._rows = -1, list[dict[str, Any]]()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        group = bisect.bisect_right(self._ends, number)
        if group != self._group:
            self._rows = self._file.read_row_group(group, columns=self._columns).to_pylist()
            self._group = group
        return self._rows[number - (self._ends[group - 1] if group else 0)]


@dataclass(frozen=True, kw_only=True)
class Parquet(Kind):
    """Tables; an example is a row, a dict by column. Rows of one group are read together: shuffled reading costs a
    group for each."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    columns: tuple[str, ...] = ()
    """Columns to read; none: all."""

    def open(self, path: Path, name: str) -> Opened:
        return _TableRows(path, tuple(self.columns))


class _Members:
    """The members of an archive, by example; read in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._examples: dict[str, list[tuple[str, int, int]]] = {}
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    key, suffix = _split(member.name)
                    self._examples.setdefault(key, []).append((suffix, member.offset_data, member.size))
            end = archive.offset
        if end >= path.stat().st_size:
            raise ValueError("it is truncated: the blocks at the end of the archive are missing")
        self._keys = list(self._examples)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, number: int) -> dict[str, Any]:
        key = self._keys[number]
        members: dict[str, Any] = {KEY: key}
        with self._path.open("rb") as file:
            for suffix, begin, size in self._examples[key]:
                file.seek(begin)
                data = file.read(size)
                if len(data) < size:
                    raise ValueError(f"it ends within {key}.{suffix}")
                members[suffix] = _value(suffix, data)
        return members


def _split(name: str) -> tuple[str, str]:
    """Return the key of an example, and the suffix of a member: the part after the first dot of its base name."""
    folder, _, own = name.rpartition("/")
    stem, _, suffix = own.partition(".")
    return f"{folder}/{stem}" if folder else stem, suffix


def _value(suffix: str, data: bytes) -> Any:
    last = suffix.rpartition(".")[2].lower()
    if last in ("cls", "index"):
        return int(data)
    if last in ("txt", "text"):
        return data.decode()
    if last == "json":
        return json.loads(data)
    if last == "npy":
        return torch.from_numpy(np.load(io.BytesIO(data)))
    return decoded(f".{last}", data)


@dataclass(frozen=True, kw_only=True)
class Tar(Kind):
    """Uncompressed archives, as of WebDataset; an example is a dict: members by suffix, and its name at "__key__"."""

    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    def open(self, path: Path, name: str) -> Opened:
        return _Members(path)


KINDS: dict[str, type[Kind]] = {
    "images": Images,
    "npy": Npy,
    "parquet": Parquet,
    "safetensors": Safetensors,
    "tar": Tar,
    "tokens": Tokens,
}
"""The kinds, by name."""
