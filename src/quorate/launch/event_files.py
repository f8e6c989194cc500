"""TensorBoard event files beside the records, where the extra `tensorboard` is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFiles:
    """A copy of rank 0's losses and of what it logs, as TensorBoard scalars (`loss`, and the names given to `log`).

    The files are made with the first, and written by a thread of TensorBoard's own; cost per row: some 20 µs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def row(self, values: Mapping[str, Any]) -> None:
        """One row of the records, as it is written."""
        if values["kind"] == "step" and values["optimizer"] == "1" and values["loss"] is not None:
            self._add("loss", values["loss"], values["step"])
        elif values["kind"] == "log":
            for name, value in values["values"].items():
                if isinstance(value, int | float):
                    self._add(name, value, values["step"])

    def _add(self, name: str, value: float, step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is held."""
        if self._writer is not None:
            self._writer.close()


def event_files(folder: Path) -> EventFiles | None:
    """Event files in `folder`; None where TensorBoard is not installed."""
    return EventFiles(folder) if importlib.util.find_spec("tensorboard") is not None else None
