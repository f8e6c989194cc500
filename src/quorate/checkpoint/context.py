"""Where one worker's checkpoints are, and who is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quorate.wire.current import Place


@dataclass
class CheckpointContext:
    """One of each worker; `checkpoint_context(place)` gives it."""

    root: Path | None = None
    """The folder in which this run's checkpoints are."""
    tell: Callable[[str], None] | None = None
    """Shows a sentence to the user; None where the script keeps no checkpoints."""
    loads: int = 0
    """How often a checkpoint was looked for."""


def checkpoint_context(place: Place) -> CheckpointContext:
    """That of the worker."""
    return place.context(CheckpointContext)
