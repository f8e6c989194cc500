"""Sentences on stderr. A failed write ends nothing: stderr may be a log on a full disk, or a closed terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def tell(text: str, to: TextIO | None = None) -> None:
    """Write `text`, unchanged, to stderr (or `to`) and flush it; a text that cannot be written is dropped."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # full or broken, closed, and absent
        stream = sys.stderr if to is None else to
        stream.write(text)
        stream.flush()


def flush() -> None:
    """Flush stdout and stderr, where that is possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
