"""Sentences on stderr. What only tells ends nothing: stderr may be a log on a full disk, or a closed terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def tell(text: str, to: TextIO | None = None) -> None:
    """Write `text`, as it is, on stderr (or `to`), at once; what cannot be written is left out."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # full or gone, closed, and not there at all
        stream = sys.stderr if to is None else to
        stream.write(text)
        stream.flush()


def flush() -> None:
    """Let go of what stdout and stderr still hold, where that can be."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
