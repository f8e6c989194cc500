"""The folder of the user's caches: data that was read or computed once and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/quorate`, or `~/.cache/quorate`; None where there is no home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the XDG standard: relative ones are ignored
        return Path(named) / "quorate"
    try:
        return Path.home() / ".cache" / "quorate"
    except RuntimeError:
        return None
