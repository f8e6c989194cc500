"""A text stream that takes bytes: the standard streams of a notebook's kernel take text only."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO, TextIO


def bytes_of(stream: TextIO) -> BinaryIO:
    """Return the binary buffer of a text stream, or one that decodes into it."""
    binary: BinaryIO = getattr(stream, "buffer", None) or _TextBytes(stream)
    return binary


class _TextBytes(io.BytesIO):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: object) -> int:
        data = bytes(piece)  # type: ignore[call-overload]
        self._stream.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")
