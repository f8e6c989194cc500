"""The numbers of a run for its loggers, and a thread that passes them on, so that no training waits for loggers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from quorate.launch.loggers import Logger, loggers
from quorate.records.live_figures import LiveFigures

LEAVES = 30.0
"""Seconds for all loggers together to write their held numbers at the end."""
_MOST_HELD = 10_000
"""The most numbers that are held for slow loggers; more are left out, which is reported."""
BETWEEN_SECONDS = 0.25
"""Between two scalars of a name that are written, at least."""
OURS = "quorate/"
"""Prefix of names that are not the script's own."""
Opens = Callable[[], Logger]


class Writing:
    """Opens the loggers and calls them, in order, in a thread of its own, which begins with the first number.

    A logger that raises, whatever it is, is left out from then on, and `say` is given a sentence: a training is worth
    more than its curves.
    """

    def __init__(self, opens: Mapping[str, Opens], say: Callable[[str], None]) -> None:
        self._opens, self._say = dict(opens), say
        self._open: dict[str, Logger] = {}
        self._held: queue.Queue[tuple[str, float, int] | None] = queue.Queue(_MOST_HELD)
        self._thread: threading.Thread | None = None
        self._is_full = False
        self.is_well = True
        """Whether the run has ended well; to be set before `close`."""

    def add(self, name: str, value: float, step: int) -> None:
        """Write this number, some time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="quorate loggers", daemon=True)
            self._thread.start()
        try:
            self._held.put_nowait((name, value, step))
        except queue.Full:
            if not self._is_full:
                self._say("the loggers are too slow and miss some values; the records have all of them")
            self._is_full = True

    def close(self) -> None:
        """Write the held numbers; those not written after `LEAVES` seconds are left out."""
        if self._thread is None:
            return
        try:
            self._held.put(None, timeout=LEAVES)
        except queue.Full:
            pass  # it is stuck, as the next line finds
        self._thread.join(LEAVES)
        if self._thread.is_alive():
            self._say(
                f"loggers have not written everything within {LEAVES:g} s ({', '.join(self._open)}); leaving them"
            )
        self._thread = None

    def _write(self) -> None:
        for name, opens in self._opens.items():
            self._guarded(name, partial(self._begin, name, opens))
        while (number := self._held.get()) is not None:
            for name, logger in list(self._open.items()):
                self._guarded(name, partial(logger.add, *number))
        for name, logger in list(self._open.items()):
            self._guarded(name, partial(logger.close, is_well=self.is_well))

    def _begin(self, name: str, opens: Opens) -> None:
        self._open[name] = opens()

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._open.pop(name, None)
            self._say(f"the logger {name} has stopped working ({type(error).__name__}: {error}); the training goes on")


def writing_to(
    names: Sequence[str], folder: Path, about: Mapping[str, Any], say: Callable[[str], None]
) -> Writing | None:
    """The thread for these loggers; None where there are none.

    Their packages are imported here, before the training: a thread that imports holds up its first steps.
    """
    for name in names:
        with suppress(Exception):  # the thread meets it again, and says so
            loggers.get(name)
    return Writing({name: partial(_opened, name, folder, about) for name in names}, say) if names else None


def _opened(name: str, folder: Path, about: Mapping[str, Any]) -> Logger:
    return loggers.get(name)(folder, about)


class Scalars:
    """A copy of rank 0's losses, of what it logs, and of `records.live_figures`, as named numbers by step.

    They are `loss`, the names given to `log`, and `quorate/goodput`, `quorate/rho` and so on; the goodput once a worker
    has died, or where there are rounds. Of losses, merges and outer steps at most four a second, and the last one, are
    written.
    """

    def __init__(self, writing: Writing) -> None:
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
                    self._writing.add(name, value, values["step"])
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
            self._writing.add(name, value, step)
        if kind == "step" and (self._figures.has_failed or self._figures.has_rounds):
            goodput = self._figures.goodput
            if goodput is not None:
                self._writing.add(OURS + "goodput", goodput, step)

    def close(self) -> None:
        """Write the held numbers."""
        for kind, (figures, step) in self._left_out.items():
            self._write(kind, figures, step)
        self._left_out.clear()
        self._writing.close()
