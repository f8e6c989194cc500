"""Verbs of the command line, run in this process."""

from __future__ import annotations

import pytest

from quorate.cli.main import main


def status(*words: object) -> int:
    """Return the exit status of `quorate` with these words."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)
