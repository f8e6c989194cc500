"""Files of tensors in the safetensors format, written part by part with their SHA-256, and read with `safetensors`.

The format: eight bytes with the length of a JSON header, little-endian; then the header; then the tensors' bytes
without gaps. The header has the dtype, shape and place of every tensor, and a dict of text under `__metadata__`. It is
written here rather than by the library so that bytes are hashed while they are written to the disk: no second copy in
memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quorate.core.errors import CheckpointError

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_CHUNK = 8 << 20
_SPLIT = "/as-real"
"""The suffix of a tensor that is kept as pairs of numbers: complex types that the format lacks."""
_IN_PAIRS = (torch.complex128, torch.complex32)


class Output(Protocol):
    """A destination of bytes; `write` takes all of them or raises `OSError`."""

    def write(self, data: Any) -> None: ...

    def sync(self) -> None:
        """Flush all written bytes to the disk."""

    def close(self) -> None: ...


class FileOutput:
    """A new file."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def write(self, data: Any) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._handle, rest) :]

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


Open = Callable[[Path], Output]


@dataclass(frozen=True)
class Written:
    """The digest and size of a file, as in the manifest."""

    sha256: str
    bytes: int

    @property
    def as_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        return {"sha256": self.sha256, "bytes": self.bytes}


def write_file(path: Path, pieces: Sequence[Any], opened: Open = FileOutput) -> Written:
    """Write a new file of `pieces` (bytes, or arrays of them), synced. Raises `OSError`."""
    digest, count = hashlib.sha256(), 0
    output = opened(path)
    try:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            for begin in range(0, len(view), _CHUNK):
                chunk = view[begin : begin + _CHUNK]
                output.write(chunk)
                digest.update(chunk)
                count += len(chunk)
        output.sync()
    finally:
        output.close()
    return Written(digest.hexdigest(), count)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], opened: Open = FileOutput
) -> Written:
    """Write a new safetensors file of CPU tensors with `about` as its metadata."""
    named = dict(_splittable(name, x) for name, x in tensors.items())
    order = sorted(named, key=lambda name: (-named[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(about)}
    begin = 0
    for name in order:
        x = named[name]
        end = begin + x.numel() * x.element_size()
        header[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return write_file(path, [struct.pack("<Q", len(text)), text, *(_bytes_of(named[name]) for name in order)], opened)


@dataclass
class TensorFile:
    """A future file, whose tensors are copies already."""

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, opened: Open = FileOutput) -> Written:
        """Write the file. Raises `OSError`."""
        return write_tensors(folder / self.name, self.tensors, {"format": "pt", **self.about}, opened)


def _splittable(name: str, x: Tensor) -> tuple[str, Tensor]:
    whole = x.detach().cpu().contiguous()
    return (f"{name}{_SPLIT}", torch.view_as_real(whole)) if x.dtype in _IN_PAIRS else (name, whole)


def can_be_written(x: Tensor) -> bool:
    """Return whether the format has the dtype of `x`, and its numbers are in memory."""
    is_dense = x.layout is torch.strided and not (x.is_quantized or x.is_meta)
    return is_dense and (x.dtype in _NAMES or x.dtype in _IN_PAIRS)


def _bytes_of(x: Tensor) -> Any:
    return x.reshape(-1).view(torch.uint8).numpy() if x.numel() else b""


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors of a file, and its metadata. Raises `CheckpointError`."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None
    joined = {name.removesuffix(_SPLIT): _whole(name, x) for name, x in tensors.items()}
    return joined, about


def _whole(name: str, x: Tensor) -> Tensor:
    return torch.view_as_complex(x.contiguous()) if name.endswith(_SPLIT) else x


def hash_file(path: Path) -> Written:
    """Return the digest and size of `path`. Raises `OSError`."""
    digest, count = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            count += len(chunk)
    return Written(digest.hexdigest(), count)


def sync_folder(path: Path) -> None:
    """Flush the names in `path` to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
