"""The format of a board's requests and replies on a stream: frames of byte strings.

A frame is its length in bytes (u32, big-endian), then each part as its length (u32) and its bytes. Frames above
`LIMIT` are refused before any of their bytes is kept, so a peer that sends garbage costs constant memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

LIMIT = 64 * 2**20
"""The greatest frame, in bytes."""

_LENGTH = struct.Struct(">I")
_CHUNK = 2**16


class Stream(Protocol):
    """A stream of bytes in both directions: a socket, or two pipes."""

    def recv(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""


class BadFrame(ValueError):
    """The received bytes are no frame."""


def write_frame(stream: Stream, parts: Sequence[bytes]) -> None:
    """Send `parts` as one frame. Raises `BadFrame`, with nothing sent, where they are too long."""
    body = b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))
    if len(body) > LIMIT:
        raise BadFrame(f"a message of {len(body)} bytes is too long for the board; it takes {LIMIT} bytes at most")
    stream.sendall(_LENGTH.pack(len(body)) + body)


def read_frame(stream: Stream) -> list[bytes] | None:
    """Return the parts of the next frame; None where the stream has ended. Raises `BadFrame`."""
    head = _read(stream, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > LIMIT:
        raise BadFrame(f"a frame of {length} bytes is longer than the {LIMIT} bytes allowed")
    body = _read(stream, length)
    return None if body is None else _parts(body)


def _read(stream: Stream, length: int) -> bytes | None:
    """Return exactly `length` bytes; None where the stream ends before. Memory grows with the bytes received only."""
    got = bytearray()
    while len(got) < length:
        piece = stream.recv(min(_CHUNK, length - len(got)))
        if not piece:
            return None
        got += piece
    return bytes(got)


def _parts(body: bytes) -> list[bytes]:
    parts = []
    at = 0
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise BadFrame("a frame ends inside a length")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise BadFrame("a frame ends inside a part")
        parts.append(body[at : at + length])
        at += length
    return parts
