"""The bytes of a `Message`: a JSON header with shapes and dtypes, then the tensors' memory. No pickle."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Message

HEADER_LIMIT = 1 << 20
"""Largest JSON header of a frame, in bytes."""
BYTES_LIMIT = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Largest size of a frame's tensors, in bytes: the memory of this machine."""

_LENGTH = struct.Struct("!I")
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

    `find` returns tensors in the sender's shared memory.
    """

    def __init__(self, find: Find | None = None) -> None:
        self._find = find
        self._next_length()

    def _tensor(self, dtype: torch.dtype, shape: Sequence[int], place: Sequence[Place]) -> Tensor:
        if not place:
            return torch.empty(shape, dtype=dtype)
        if self._find is None:
            raise ValueError("a frame refers to memory that is not shared")
        return self._find(dtype, shape, place[0])

    def _read_header(self) -> None:
        self._header = json.loads(bytes(self._buffer))
        envelope, header, described = self._header["e"], self._header["h"], self._header["x"]
        if not (isinstance(envelope, dict) and isinstance(header, dict) and isinstance(described, list)):
            raise TypeError("it does not have the three parts of a frame")
        self._tensors, self._left, self._is_shared = [], [], False
        if described and sum(_bytes_of(dtype, shape) for dtype, shape, *place in described if not place) > BYTES_LIMIT:
            raise ValueError(f"a frame announces more than the {BYTES_LIMIT} bytes of memory there are")
        for dtype, shape, *place in described:
            self._tensors.append(self._tensor(_DTYPES[dtype], shape, place))
            self._is_shared = self._is_shared or bool(place)
            if not place and self._tensors[-1].numel():
                self._left.append(self._tensors[-1])

    def _next_length(self) -> None:
        self._stage, self._buffer = "length", memoryview(bytearray(_LENGTH.size))
        self._filled = 0

    @property
    def want(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        return self._buffer[self._filled :]

    def got(self, count: int) -> tuple[Message, dict[str, Any]] | None:
        """Take `count` bytes written to `want`; return a message with its envelope once it is complete.

        Raises `ValueError` for bytes that are no frame.
        """
        self._filled += count
        if self._filled < len(self._buffer):
            return None
        if self._stage == "length":
            (length,) = _LENGTH.unpack(self._buffer)
            if not 0 < length <= HEADER_LIMIT:
                raise ValueError(f"a frame announces a header of {length} bytes")
            self._stage, self._buffer, self._filled = "header", memoryview(bytearray(length)), 0
            return None
        if self._stage == "header":
            try:
                self._read_header()
            except (KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:  # also too deep a nesting
                raise ValueError(f"a frame's header is none: {error}") from None
        if self._left:
            self._stage, self._buffer, self._filled = "tensor", raw(self._left.pop(0)), 0
            return None
        message = Message(tuple(self._tensors), self._header["h"], self._is_shared)
        self._tensors = []
        envelope: dict[str, Any] = self._header["e"]
        self._next_length()
        return message, envelope
