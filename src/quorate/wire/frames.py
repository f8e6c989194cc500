"""How a `Message` is written as bytes: a JSON header with shapes and dtypes, then the tensors' memory. No pickle."""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Message

HEADER_LIMIT = 1 << 20
"""Bytes a frame's JSON header may take."""

_LENGTH = struct.Struct("!I")
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def raw(x: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared with it."""
    if not x.numel():
        return memoryview(b"")
    shared: Any = x.view(-1).view(torch.uint8).numpy()
    return memoryview(shared)


def encode(message: Message, **envelope: Any) -> list[memoryview]:
    """The pieces of a frame, in order; contiguous CPU tensors are not copied, so they must not change before."""
    tensors = [x.detach().cpu().contiguous() for x in message.tensors]
    header = {
        "e": envelope,
        "h": dict(message.header),
        "x": [(str(x.dtype).removeprefix("torch."), list(x.shape)) for x in tensors],
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=True).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a message's header takes {len(text)} bytes; at most {HEADER_LIMIT} are allowed")
    return [memoryview(_LENGTH.pack(len(text)) + text), *(raw(x) for x in tensors if x.numel())]


class Reader:
    """Reads one stream of frames: `want` says where the next bytes go, `got` how many came."""

    def __init__(self) -> None:
        self._next_length()

    def _next_length(self) -> None:
        self._stage, self._buffer = "length", memoryview(bytearray(_LENGTH.size))
        self._filled = 0

    @property
    def want(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._buffer[self._filled :]

    def got(self, count: int) -> tuple[Message, dict[str, Any]] | None:
        """`count` bytes were written to `want`; a whole message with its envelope, once it is there.

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
            self._header = json.loads(bytes(self._buffer))
            self._tensors = [torch.empty(shape, dtype=_DTYPES[dtype]) for dtype, shape in self._header["x"]]
            self._left = [x for x in self._tensors if x.numel()]
        if self._left:
            self._stage, self._buffer, self._filled = "tensor", raw(self._left.pop(0)), 0
            return None
        message = Message(tuple(self._tensors), self._header["h"])
        envelope: dict[str, Any] = self._header["e"]
        self._next_length()
        return message, envelope
