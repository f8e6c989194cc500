"""Archives of examples (`.tar`): members whose names differ only in their suffix are one example, as in WebDataset."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from quorate.data.files.kinds import Kind, Opened
from quorate.data.files.pictures import decoded

KEY = "__key__"


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
    """Uncompressed archives; an example is a dict: its members by suffix, and its name under "__key__"."""

    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    def open(self, path: Path, name: str) -> Opened:
        return _Members(path)
