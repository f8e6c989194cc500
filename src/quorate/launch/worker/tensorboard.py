"""TensorBoard event files beside the records, where the extra `tensorboard` is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOSS_SECONDS = 0.25
"""Between two losses that are written, at least."""


class EventFiles:
    """A copy of rank 0's losses and of what it logs, as TensorBoard scalars (`loss`, and the names given to `log`).

    Of the losses at most four a second, and the last one, are written: one costs the training thread some 0.3 ms. The
    files are made with the first, and written by a thread of TensorBoard's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._written_at = -LOSS_SECONDS
        self._left_out: tuple[float, int] | None = None

    def row(self, values: Mapping[str, Any]) -> None:
        """One row of the records, as it is written."""
        if values["kind"] == "step" and values["optimizer"] == "1" and values["loss"] is not None:
            self._loss(values["loss"], values["step"], values["end"])
        elif values["kind"] == "log":
            for name, value in values["values"].items():
                if isinstance(value, int | float):
                    self._add(name, value, values["step"])

    def _loss(self, loss: float, step: int, at: float) -> None:
        if at - self._written_at < LOSS_SECONDS:
            self._left_out = loss, step
            return
        self._written_at, self._left_out = at, None
        self._add("loss", loss, step)

    def _add(self, name: str, value: float, step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is held."""
        if self._left_out is not None:
            self._add("loss", *self._left_out)
        if self._writer is not None:
            self._writer.close()


def event_files(folder: Path) -> EventFiles | None:
    """Event files in `folder`; None where TensorBoard is not installed."""
    return EventFiles(folder) if importlib.util.find_spec("tensorboard") is not None else None
