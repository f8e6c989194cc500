"""TensorBoard's event files, in the run's folder: `tensorboard --logdir runs` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFiles:
    """Scalars under their names; text is not kept."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self, *, is_well: bool) -> None:
        self._writer.close()


def opened(folder: Path, about: Mapping[str, Any]) -> EventFiles:
    """A new event file in `folder`."""
    return EventFiles(folder)
