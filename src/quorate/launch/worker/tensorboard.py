"""TensorBoard event files beside the records, where the extra `tensorboard` is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quorate.core.live_figures import LiveFigures

BETWEEN_SECONDS = 0.25
"""Between two scalars of a name that are written, at least."""
OURS = "quorate/"
"""Begins the names of what is not the script's own."""


class EventFiles:
    """A copy of rank 0's losses, of what it logs, and of live figures (`core.live_figures`), as TensorBoard scalars.

    They are `loss`, the names given to `log`, and `quorate/goodput`, `quorate/rho` and so on; the goodput once a worker
    has died, or where there are rounds. Of losses, merges and outer steps at most four a second, and the last one, are
    written: a scalar costs the training thread some 0.3 ms. The files are made with the first, and written by a thread
    of TensorBoard's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._figures = LiveFigures()
        self._step = 0
        self._written_at: dict[str, float] = {}
        self._left_out: dict[str, tuple[dict[str, float], int]] = {}
        """By the kind of row."""

    def row(self, values: Mapping[str, Any]) -> None:
        """One row of the records, as it is written."""
        kind, found = values["kind"], {OURS + name: value for name, value in self._figures.row(values).items()}
        if kind == "step" and values["optimizer"] == "1":
            self._step = values["step"]
            loss = {} if values["loss"] is None else {"loss": values["loss"]}
            self._now_and_then(kind, loss, values["end"])
        elif kind == "log":
            for name, value in values["values"].items():
                if isinstance(value, int | float):
                    self._add(name, value, values["step"])
        elif found:
            self._now_and_then(kind, found, values["time"])

    def _now_and_then(self, kind: str, found: dict[str, float], at: float) -> None:
        if at - self._written_at.get(kind, -BETWEEN_SECONDS) < BETWEEN_SECONDS:
            self._left_out[kind] = found, self._step
            return
        self._written_at[kind] = at
        self._left_out.pop(kind, None)
        self._write(kind, found, self._step)

    def _write(self, kind: str, found: dict[str, float], step: int) -> None:
        for name, value in found.items():
            self._add(name, value, step)
        if kind == "step" and (self._figures.has_failed or self._figures.has_rounds):
            goodput = self._figures.goodput
            if goodput is not None:
                self._add(OURS + "goodput", goodput, step)

    def _add(self, name: str, value: float, step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is held."""
        for kind, (found, step) in self._left_out.items():
            self._write(kind, found, step)
        if self._writer is not None:
            self._writer.close()


def event_files(folder: Path) -> EventFiles | None:
    """Event files in `folder`; None where TensorBoard is not installed."""
    return EventFiles(folder) if importlib.util.find_spec("tensorboard") is not None else None
