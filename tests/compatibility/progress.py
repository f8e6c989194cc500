"""The progress of `make compatibility`: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from quorate.report.wording import time_left_in_words

LINE_SECONDS = 10.0
"""Seconds between two lines where stdout is no terminal."""


class Progress:
    """Cases that are done of each stage, failures so far, and the time left for the stage.

    Args:
        part: The name of the part, which lines begin with.
        now: The clock, in seconds.
    """

    def __init__(self, part: str, now: Callable[[], float] = time.monotonic) -> None:
        self._part, self._now = part, now
        self.failures = 0
        self._stage = ""
        self._total = self._done = self._known = 0
        self._began = self._shown = 0.0
        self._bar: Any = None

    def begin(self, stage: str, total: int, known: int, failures: int = 0) -> None:
        """Begin a stage of `total` cases; a run before has `known` results of them, of which some are `failures`."""
        self.end()
        self.failures += failures
        self._stage, self._total, self._done, self._known = stage, total, known, known
        self._began = self._now()
        if sys.stdout.isatty():
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task(self.line, total=total, completed=known)
        self.show(at_once=True)

    def advance(self, failure: str = "") -> None:
        """Count a case; `failure` is the sentence about one that fails, and is printed."""
        self._done += 1
        if failure:
            self.failures += 1
            self._print(f"fails: {failure}")
        self.show(at_once=self._done == self._total)

    def show(self, *, at_once: bool = False) -> None:
        """Draw the bar, or print the line if it is due."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[-1], description=self.line, completed=self._done)
            self._bar.refresh()
        elif at_once or self._now() - self._shown >= LINE_SECONDS:
            self._shown = self._now()
            self._print(self.line)

    def end(self) -> None:
        """End the stage."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def line(self) -> str:
        """The state of the stage in a line."""
        words = f"{self._part}, {self._stage}: {self._done} of {self._total}, {self.failures} failed"
        played, left = self._done - self._known, self._total - self._done
        if not played or not left:
            return words
        return f"{words}, {time_left_in_words((self._now() - self._began) / played * left)} left"

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, flush=True)


def _bar() -> Any:
    from rich import progress

    columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn())
    return progress.Progress(*columns, auto_refresh=False)
