"""The numbers that loggers receive: losses, logged values and figures of a run, from the rows of rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from quorate.records.live_figures import LiveFigures

BETWEEN_SECONDS = 0.25
"""Between two scalars of a name that are written, at least."""
OURS = "quorate/"
"""Prefix of names that are not the script's own."""


class Numbers(Protocol):
    """A receiver of numbers."""

    def add(self, name: str, value: float, step: int) -> None:
        """Take one."""

    def close(self) -> None:
        """Take no more."""


class Scalars:
    """A copy of rank 0's losses, of what it logs, and of `records.live_figures`, as named numbers by step.

    They are `loss`, the names given to `log`, and `quorate/goodput`, `quorate/rho` and so on; the goodput once a worker
    has died, or where there are rounds. Of losses, merges and outer steps at most four a second, and the last one, are
    written.
    """

    def __init__(self, writing: Numbers) -> None:
        self._writing = writing
        self._figures = LiveFigures()
        self._step = 0
        self._written_at: dict[str, float] = {}
        self._left_out: dict[str, tuple[dict[str, float], int]] = {}
        """By the kind of row."""

    def row(self, values: Mapping[str, Any]) -> None:
        """One row of the records, as it is written."""
        kind, figures = values["kind"], {OURS + name: value for name, value in self._figures.row(values).items()}
        if kind == "step" and values["optimizer"] == "1":
            self._step = values["step"]
            loss = {} if values["loss"] is None else {"loss": values["loss"]}
            self._now_and_then(kind, loss, values["end"])
        elif kind == "log":
            for name, value in values["values"].items():
                if isinstance(value, int | float):
                    self._add(name, value, values["step"])
        elif figures:
            self._now_and_then(kind, figures, values["time"])

    def _now_and_then(self, kind: str, figures: dict[str, float], at: float) -> None:
        if at - self._written_at.get(kind, -BETWEEN_SECONDS) < BETWEEN_SECONDS:
            self._left_out[kind] = figures, self._step
            return
        self._written_at[kind] = at
        self._left_out.pop(kind, None)
        self._write(kind, figures, self._step)

    def _write(self, kind: str, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self._add(name, value, step)
        if kind == "step" and (self._figures.has_failed or self._figures.has_rounds):
            goodput = self._figures.goodput
            if goodput is not None:
                self._add(OURS + "goodput", goodput, step)

    def _add(self, name: str, value: float, step: int) -> None:
        self._writing.add(name, value, step)

    def close(self) -> None:
        """Write the held numbers."""
        for kind, (figures, step) in self._left_out.items():
            self._write(kind, figures, step)
        self._left_out.clear()
        self._writing.close()
