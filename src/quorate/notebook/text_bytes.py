"""A text stream as one that takes bytes: what a notebook's kernel has in place of standard streams has no bytes."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO, TextIO


def bytes_of(stream: TextIO) -> BinaryIO:
    """Its own bytes, where it has some."""
    binary: BinaryIO = getattr(stream, "buffer", None) or _TextBytes(stream)
    return binary


class _TextBytes(io.BytesIO):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: object) -> int:
        """As of a stream."""
        data = bytes(piece)  # type: ignore[call-overload]
        self._stream.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        """As of a stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """There is none."""
        raise io.UnsupportedOperation("fileno")
