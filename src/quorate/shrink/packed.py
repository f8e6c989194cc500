"""Files of models whose numbers are pruned, or share few values: a few bits for each number that is left.

A file is in the safetensors format: one tensor of bytes for each tensor of the model, under its name. Its bytes are

    form, dtype, number of dimensions, each dimension,                          of each tensor
    number of values, the values,                                               of one whose numbers share values
    positions of the numbers that are kept, as gaps between them,               where most are zero
    the value of each kept number, as an index; or the bytes of all numbers     with the Huffman code of zlib

Numbers of dimensions and the like are varints. Gaps are bytes; 255 stands for 255 zeros without a number behind them.
Numbers that share no values are coded by planes: the first bytes of all numbers, then the second ones, and so on.
A stream is kept as it is if its Huffman code is not shorter. The metadata has a checksum of all tensors.

Zero is a number all of whose bits are 0, so that packing and unpacking returns the same bits, with NaN and -0.0.

Source: Han, Mao, Dally, "Deep compression", ICLR 2016. Huffman codes are those of DEFLATE without matches
(`Z_HUFFMAN_ONLY`), a part of Python.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from quorate.checkpoint.tensor_file import read_tensors
from quorate.core.errors import CheckpointError
from quorate.replica.forms import forms_in
from quorate.replica.groups import GROUPS, VALUES, shared

FORMAT = "1"
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
_WORDS: Mapping[int, np.dtype[np.unsignedinteger]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_MOST_VALUES = 255
_SKIP = 255
_RAW, _SHARED, _SPARSE, _SPARSE_SHARED = range(4)
"""Forms of a tensor; the sparse ones have positions."""
_MOST_NUMBERS = 1 << 36

Words = NDArray[np.unsignedinteger]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Stages:
    """The bytes of a tensor after each stage of compression."""

    name: str
    numbers: int
    kept: int
    """The number of those that are not zero."""
    values: int
    """The number of different ones among these; 0 if there are more than 255."""
    dense: int
    pruned: int
    """With gaps of equal width, and each kept number as it is."""
    shared: int
    """With gaps and indices of equal width, and the values."""
    coded: int
    """In the file, with its own header of some bytes."""


@dataclass(frozen=True)
class Packed:
    """A packed file, and how large each tensor is at each stage."""

    data: bytes
    stages: list[Stages]


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Packed:
    """Return the packed file of a model's tensors (any shapes; on the CPU).

    Weights in the form of `quorate.shrink.cluster` become one tensor under the name of the weight, as a plain model has
    it. Other tensors whose numbers have at most 255 different values, without zero, are packed as these.

    Args:
        tensors: The tensors by name; of floats of 16 to 64 bits, integers or booleans.
        metadata: Texts that `unpack` returns.

    Raises:
        CheckpointError: A tensor has another dtype.

    Cost: some passes over the tensors, with one to compare what `unpack` returns.

    Example:
        >>> packed = quorate.shrink.pack({"weight": torch.zeros(64, 64)}, {"format": "pt"})
        >>> len(packed.data) < 64 * 64
        True
    """
    plain = plain_tensors(tensors)
    entries = {name: _encoded(name, x) for name, x in plain.items()}
    blobs = {name: np.frombuffer(data, dtype=np.uint8) for name, (data, _) in entries.items()}
    checksum = _checksum({name: data for name, (data, _) in entries.items()})
    about = {**(metadata or {}), "quorate": f"{FORMAT} {checksum:08x}"}
    data = save({name: torch.from_numpy(x.copy()) for name, x in blobs.items()}, about)
    _check_same(plain, unpack(data)[0])
    return Packed(data, [stages for _, stages in entries.values()])


def _check_same(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    for name, x in before.items():
        assert after[name].dtype == x.dtype and after[name].shape == x.shape, name
        assert np.array_equal(_words_of(after[name]), _words_of(x)), name


def plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with weights that share values in full."""
    plain: dict[str, Tensor] = dict(tensors)
    for name, form in forms_in(tensors).items():
        if "values" in form:
            values, groups = plain.pop(f"{name}{VALUES}"), plain.pop(f"{name}{GROUPS}")
            if groups.numel() and int(groups.max()) > len(values):
                raise CheckpointError(f"{name}{GROUPS} has a group of which {name}{VALUES} has no value")
            plain[name] = shared(values, groups)
    return plain


def unpack(data: bytes, name: str = "the file") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a packed file with the bits that they had, and the metadata given to `pack`.

    Args:
        data: The bytes of the file.
        name: The name of the file in errors.

    Raises:
        CheckpointError: The bytes are no packed file, or are damaged.

    Example:
        >>> tensors, metadata = quorate.shrink.unpack(quorate.shrink.pack({"weight": torch.ones(2)}).data)
        >>> tensors["weight"]
        tensor([1., 1.])
    """
    try:
        blobs, about = load(data), _metadata(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{name} is no packed file, or it is cut short: {error}") from None
    form, _, checksum = about.pop("quorate", "").partition(" ")
    if not checksum:
        raise CheckpointError(f"{name} was not written by quorate pack")
    if form != FORMAT:
        raise CheckpointError(f"{name} has format {form} of packed files, and this version reads {FORMAT}")
    try:
        raw = {key: x.numpy().tobytes() for key, x in blobs.items()}
        if f"{_checksum(raw):08x}" != checksum:
            raise CheckpointError(f"{name} is damaged: its tensors have another checksum")
        return {key: _decoded(_Reader(blob)) for key, blob in raw.items()}, about
    except (ValueError, IndexError, OverflowError, MemoryError, zlib.error, TypeError) as error:
        raise CheckpointError(f"{name} is damaged: {error}") from None


def read_packed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a packed file: see `unpack`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    return unpack(data, path.name)


def pack_file(path: Path) -> Packed:
    """Return the packed file of a `.safetensors` file. Raises `CheckpointError` as `pack`, and if it cannot be read."""
    tensors, metadata = read_tensors(path)
    if "quorate" in metadata:
        raise CheckpointError(f"{path.name} is packed already")
    return pack(tensors, metadata)


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + length]).get("__metadata__", {}))


def _checksum(blobs: Mapping[str, bytes]) -> int:
    checksum = 0
    for name in sorted(blobs):
        checksum = zlib.crc32(blobs[name], zlib.crc32(name.encode(), checksum))
    return checksum


# -- one tensor


def _encoded(name: str, x: Tensor) -> tuple[bytes, Stages]:
    if x.dtype not in _DTYPES:
        raise CheckpointError(f"{name} is of {x.dtype}, which packed files do not have")
    words = _words_of(x)
    kept = np.flatnonzero(words)
    values = _values_of(words[kept])
    size, gaps = words.itemsize, _gaps(kept)
    index_bits = 0 if values is None else max(1, int(len(values) - 1).bit_length())
    header = _varint(_DTYPES.index(x.dtype)) + _varint(x.dim()) + b"".join(map(_varint, x.shape))
    forms = [(_RAW, _planes(words)), (_SPARSE, _stream(gaps) + _planes(words[kept]))]
    if values is not None:
        table = _varint(len(values)) + values.tobytes()
        indices = _stream(np.searchsorted(values, words[kept]).astype(np.uint8))
        forms.append((_SPARSE_SHARED, table + _stream(gaps) + indices))
        if len(kept) == len(words):
            forms.append((_SHARED, table + indices))
    form, body = min(forms, key=lambda pair: (len(pair[1]), pair[0]))
    data = bytes([form]) + header + body
    of_gaps = 0 if len(kept) == len(words) else _fixed_width_bytes(kept, len(words))
    table_bytes = 0 if values is None else len(values) * size
    of_shared = table_bytes + -(-len(kept) * index_bits // 8) if values is not None else len(kept) * size
    dense = len(words) * size
    stages = Stages(
        name=name,
        numbers=len(words),
        kept=len(kept),
        values=0 if values is None else len(values),
        dense=dense,
        pruned=min(dense, of_gaps + len(kept) * size),
        shared=min(dense, of_gaps + of_shared),
        coded=len(data),
    )
    return data, stages


def _decoded(blob: _Reader) -> Tensor:
    form, dtype = blob.byte(), _DTYPES[blob.varint()]
    shape = [blob.varint() for _ in range(blob.varint())]
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if count > _MOST_NUMBERS or form > _SPARSE_SHARED:
        raise ValueError("a tensor has an impossible form or size")
    kind = _WORDS[dtype.itemsize]
    values = blob.table(kind) if form in (_SHARED, _SPARSE_SHARED) else None
    positions = blob.positions(count) if form in (_SPARSE, _SPARSE_SHARED) else None
    kept = count if positions is None else len(positions)
    numbers = blob.planes(kept, kind) if values is None else values[blob.stream(kept)]
    if len(blob.rest):
        raise ValueError("a tensor has bytes behind its numbers")
    words = np.zeros(count, dtype=kind)
    words[... if positions is None else positions] = numbers
    return torch.from_numpy(words.view(np.uint8)).view(dtype).view(shape)


def _words_of(x: Tensor) -> Words:
    """Return the numbers of `x` as integers of their bits."""
    numbers = x.detach().cpu().contiguous().reshape(-1)
    return numbers.view(torch.uint8).numpy().view(_WORDS[x.dtype.itemsize])


def _values_of(words: Words) -> Words | None:
    """Return the different `words`, in order; None if there are too many."""
    if len(np.unique(words[: 1 << 12])) > _MOST_VALUES:
        return None
    values = np.unique(words)
    return values if 0 < len(values) <= _MOST_VALUES else None


def _gaps(kept: NDArray[np.intp]) -> Bytes:
    """Return the number of zeros before each kept number, in bytes; `_SKIP` for each 255 of them before these."""
    gaps = np.diff(kept, prepend=-1) - 1
    skips = gaps // _SKIP
    ends = np.cumsum(skips + 1) - 1
    coded = np.full(int(ends[-1]) + 1 if len(ends) else 0, _SKIP, dtype=np.uint8)
    coded[ends] = gaps % _SKIP
    return coded


def _fixed_width_bytes(kept: NDArray[np.intp], count: int) -> int:
    """Return the bytes of gaps of the best fixed width, with a filler for each gap that is too long."""
    gaps = np.diff(kept, prepend=-1) - 1
    widths = range(1, max(2, count.bit_length() + 1))
    bits = (width * (len(gaps) + int((gaps // ((1 << width) - 1)).sum())) for width in widths)
    return -(-min(bits, default=0) // 8)


def _varint(number: int) -> bytes:
    coded = bytearray()
    while number > 127:
        coded.append(number & 127 | 128)
        number >>= 7
    return bytes([*coded, number])


def _stream(symbols: Bytes) -> bytes:
    """Return the number of bytes that follow, twice it and 1 more if they are a Huffman code, and the bytes."""
    raw = symbols.tobytes()
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(raw) + coder.flush()
    return _varint(2 * len(coded) + 1) + coded if len(coded) < len(raw) else _varint(2 * len(raw)) + raw


def _planes(words: Words) -> bytes:
    planes = words.view(np.uint8).reshape(len(words), words.itemsize)
    return b"".join(_stream(np.ascontiguousarray(planes[:, place])) for place in range(words.itemsize))


class _Reader:
    """Reads the parts of one tensor. Raises `ValueError` and the like for bytes that `pack` does not write."""

    def __init__(self, data: bytes) -> None:
        self.rest = memoryview(data)

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes."""
        if count > len(self.rest):
            raise ValueError("a tensor is cut short")
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def byte(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """Return the next number."""
        return sum(part << 7 * place for place, part in enumerate(self._sevens()))

    def _sevens(self) -> Iterator[int]:
        for _ in range(9):
            byte = self.byte()
            yield byte & 127
            if byte < 128:
                return
        raise ValueError("a number is too long")

    def table(self, kind: np.dtype[np.unsignedinteger]) -> Words:
        """Return the values that numbers share."""
        return np.frombuffer(self.take(self.varint() * kind.itemsize), dtype=kind)

    def bytes_of_stream(self, most: int) -> Bytes:
        """Return the bytes of a stream, at most `most`."""
        length, is_coded = divmod(self.varint(), 2)
        data: bytes = bytes(self.take(length))
        if is_coded:
            coder = zlib.decompressobj(-15)
            data = coder.decompress(data, most + 1)
            if not coder.eof or coder.unused_data:
                raise ValueError("a stream is longer than its numbers, or cut short")
        return np.frombuffer(data, dtype=np.uint8)

    def stream(self, count: int) -> Bytes:
        """Return the `count` bytes of a stream."""
        symbols = self.bytes_of_stream(count)
        if len(symbols) != count:
            raise ValueError(f"a stream has {len(symbols)} numbers in place of {count}")
        return symbols

    def positions(self, count: int) -> NDArray[np.intp]:
        """Return the positions of kept numbers among `count`."""
        coded = self.bytes_of_stream(count + 1).astype(np.intp)
        ends = np.flatnonzero(coded != _SKIP)
        positions = np.cumsum(coded)[ends] + np.arange(len(ends))
        if len(coded) and (coded[-1] == _SKIP or positions[-1] >= count):
            raise ValueError("a position lies behind the tensor")
        return positions

    def planes(self, count: int, kind: np.dtype[np.unsignedinteger]) -> Words:
        """Return `count` numbers."""
        columns = [self.stream(count) for _ in range(kind.itemsize)]
        return np.stack(columns, axis=1).reshape(-1).view(kind)
