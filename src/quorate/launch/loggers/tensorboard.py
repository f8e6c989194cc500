"""TensorBoard: numbers as event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class EventFiles:
    """TensorBoard's event files, in the run's folder: `tensorboard --logdir runs` shows them. Text is not kept."""

    def __init__(self, folder: Path, _: Mapping[str, Any]) -> None:
        self._writer = SummaryWriter(str(folder))

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self, *, is_well: bool) -> None:
        self._writer.close()
