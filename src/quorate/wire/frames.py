"""The bytes of a `Message`: a JSON header with shapes and dtypes, then the tensors' memory. No pickle."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Message

HEADER_LIMIT = 1 << 20
"""Largest JSON header of a frame, in bytes."""
BYTES_LIMIT = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Largest size of a frame's tensors, in bytes: the memory of this machine."""

_LENGTH = struct.Struct("!I")
_BUFFER_BYTES = 1 << 13
_TEXT_OF = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Without the search for circles, and made once: headers are small and many."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_DTYPES = {name: dtype for name, dtype in _DTYPES.items() if not name.startswith("q")}  # quantized


def raw(x: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, in its memory."""
    if not x.numel():
        return memoryview(b"")
    # One number may count as contiguous and still have a stride.
    shared: Any = x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()
    return memoryview(shared)


Place = Sequence[int]
"""The position of a tensor's numbers in the sender's shared memory; see `wire.real.shared`."""
Find = Callable[[torch.dtype, Sequence[int], Place], Tensor]
"""(dtype, shape, place) -> tensor; raises `ValueError` for an impossible place."""


def encode(
    message: Message, place: Callable[[Tensor], Place | None] | None = None, **envelope: Any
) -> list[memoryview]:
    """Return the pieces of a frame, in order; contiguous CPU tensors are not copied, so they must not change meanwhile.

    Of a tensor for which `place` returns a place, only the place is written.
    """
    described, carried = list[tuple[Any, ...]](), list[memoryview]()
    for tensor in message.tensors:
        x = tensor.detach().cpu().contiguous()
        at = place(x) if place is not None else None
        described.append((str(x.dtype).removeprefix("torch."), list(x.shape), *([list(at)] if at is not None else [])))
        if at is None and x.numel():
            carried.append(raw(x))
    header = {"e": envelope, "h": dict(message.header), "x": described}
    text = _TEXT_OF(header).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a message's header takes {len(text)} bytes; at most {HEADER_LIMIT} are allowed")
    return [memoryview(_LENGTH.pack(len(text)) + text), *carried]


def _bytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of an announced tensor. Raises `ValueError` for an invalid shape."""
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"a frame announces a tensor of the shape {shape}")
    return math.prod(shape) * _DTYPES[dtype].itemsize


class Reader:
    """Reads one stream of frames: the caller writes bytes to `want` and passes their number to `got`.

    Small frames come through a buffer, so that one call of the system reads all that are there; the numbers of tensors
    are read into their memory. `find` returns tensors in the sender's shared memory.
    """

    def __init__(self, find: Find | None = None) -> None:
        self._find = find
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0  # of the bytes in the buffer that were not taken
        self._left = list[
            memoryview
        ]()  # of a frame: the tensors that are not read yet, the first filled up to `_filled`
        self._filled = 0
        self._message: tuple[Message, dict[str, Any]] | None = None

    @property
    def want(self) -> memoryview:
        """The memory for the next bytes; never empty."""
        return self._left[0][self._filled :] if self._left else self._buffer[self._end :]

    def got(self, count: int) -> Iterator[tuple[Message, dict[str, Any]]]:
        """Take `count` bytes written to `want`; yield each message that is complete, with its envelope.

        Raises `ValueError` for bytes that are no frame.
        """
        if self._left:
            self._filled += count
        else:
            self._end += count
        while self._has_all_numbers() and (self._message is not None or self._takes_header()):
            if not self._left:
                message, self._message = self._message, None
                assert message is not None, "a header was read"
                yield message
        self._make_room()

    def _has_all_numbers(self) -> bool:
        """Move bytes of the buffer to the tensors that are not read yet; return whether all are."""
        while self._left:
            place = self._left[0]
            if count := min(len(place) - self._filled, self._end - self._begin):
                place[self._filled : self._filled + count] = self._buffer[self._begin : self._begin + count]
                self._filled, self._begin = self._filled + count, self._begin + count
            if self._filled < len(place):
                return False
            self._left.pop(0)
            self._filled = 0
        return True

    def _takes_header(self) -> bool:
        """Read the next header, where the buffer has all of it."""
        if self._end - self._begin < _LENGTH.size:
            return False
        length = self._length()
        if self._end - self._begin < _LENGTH.size + length:
            return False
        begin = self._begin + _LENGTH.size
        self._begin = begin + length
        try:
            self._read_header(str(self._buffer[begin : self._begin], "utf-8"))
        except (KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:  # also too deep a nesting
            raise ValueError(f"a frame's header is none: {error}") from None
        return True

    def _length(self) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, self._begin)[0]
        if not 0 < length <= HEADER_LIMIT:
            raise ValueError(f"a frame announces a header of {length} bytes")
        return length

    def _read_header(self, text: str) -> None:
        frame = json.loads(text)
        envelope, header, described = frame["e"], frame["h"], frame["x"]
        if not (isinstance(envelope, dict) and isinstance(header, dict) and isinstance(described, list)):
            raise TypeError("it does not have the three parts of a frame")
        if described and sum(_bytes_of(dtype, shape) for dtype, shape, *place in described if not place) > BYTES_LIMIT:
            raise ValueError(f"a frame announces more than the {BYTES_LIMIT} bytes of memory there are")
        tensors, is_shared = list[Tensor](), False
        for dtype, shape, *place in described:
            tensors.append(self._tensor(_DTYPES[dtype], shape, place))
            is_shared = is_shared or bool(place)
            if not place and tensors[-1].numel():
                self._left.append(raw(tensors[-1]))
        self._message = Message(tuple(tensors), header, is_shared), envelope

    def _tensor(self, dtype: torch.dtype, shape: Sequence[int], place: Sequence[Place]) -> Tensor:
        if not place:
            return torch.empty(shape, dtype=dtype)
        if self._find is None:
            raise ValueError("a frame refers to memory that is not shared")
        return self._find(dtype, shape, place[0])

    def _make_room(self) -> None:
        """Move the bytes that were not taken to the beginning of a buffer that their frame's header fits."""
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._buffer) > _BUFFER_BYTES:
                self._buffer = memoryview(bytearray(_BUFFER_BYTES))
            return
        remaining = bytes(self._buffer[self._begin : self._end])
        needed = _LENGTH.size + self._length() if len(remaining) >= _LENGTH.size else 0
        if needed > len(self._buffer):
            self._buffer = memoryview(bytearray(needed))
        self._buffer[: len(remaining)] = remaining
        self._begin, self._end = 0, len(remaining)
