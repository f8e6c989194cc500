"""Progress of a comparison: a bar and the current run on a terminal, else a line per beginning and end."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from quorate.compare.execute import Interrupt
from quorate.compare.grid import Cell
from quorate.compare.plan import Comparison
from quorate.core.telling import tell
from quorate.launch.local.processes import Conclusion
from quorate.launch.warm.run_server import RunServer
from quorate.records.live_figures import LiveFigures
from quorate.records.records import LiveRows, records_of
from quorate.report.live.view import figures_in_words
from quorate.report.wording import number_in_words, rate_in_words, seconds_in_words, time_left_in_words

_RECENT = 50
"""Steps over which examples per second are shown."""
_TELLING = 0.05
"""The share of a run that has to be done before it tells how long the rest takes."""


class Tail:
    """The records of rank 0 of a run in progress; each `look` reads the new rows."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._rows, self._workers = LiveRows(records_of(folder, 0)), workers
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._values: dict[str, Any] = {}
        self._figures = LiveFigures()

    def look(self) -> None:
        """Read the new rows."""
        for row in self._rows.look():
            self._figures.row(row)
            if row["kind"] == "step":
                self._recent.append(row)
            elif row["kind"] == "log" and isinstance(row.get("values"), dict):
                self._values = row["values"]

    @property
    def steps(self) -> int:
        """The number of the last step."""
        return int(self._recent[-1].get("step", 0)) if self._recent else 0

    def quality(self, name: str) -> float | None:
        """Return the value of `name` in the newest row of logged values, or None."""
        value = self._values.get(name)
        return float(value) if isinstance(value, int | float) else None

    @property
    def in_words(self) -> str:
        """`step 120, loss 0.312, 12,300 examples/s`; for learners also figures of the newest merge and outer step,
        and the goodput so far once a worker has died."""
        if not self._recent:
            return "starting"
        last, first = self._recent[-1], self._recent[0]
        words = [f"step {self.steps}"]
        if isinstance(last.get("loss"), int | float):
            words.append(f"loss {number_in_words(last['loss'])}")
        examples = [row.get("examples") for row in list(self._recent)[1:]]
        seconds = last.get("end", 0.0) - first.get("end", 0.0)
        if examples and all(isinstance(count, int) for count in examples) and seconds > 0:
            rate = self._workers * sum(count for count in examples if count) / seconds
            words.append(f"{rate_in_words(rate)} examples/s")
        return ", ".join([*words, *figures_in_words(self._figures, self._workers)])


class CompareProgress:
    """The progress of a comparison on the terminal: a `Watcher`, and the context in which its lines are drawn."""

    def __init__(self, plan: Comparison, interrupt: Interrupt, server: RunServer) -> None:
        self._plan, self._interrupt, self._server = plan, interrupt, server
        self._of, self._number = 0, 0
        self._seconds: list[float] = []
        self._lengths: dict[str, int] = {}
        self._tail: Tail | None = None
        self._began = 0.0
        self._told: set[str] = set()
        self._bar = _Bar() if sys.stderr.isatty() else None
        self._drawn: AbstractContextManager[Any] = nullcontext() if self._bar is None else self._bar.live

    def __enter__(self) -> CompareProgress:
        self._drawn.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._drawn.__exit__(None, None, None)

    def plans(self, cells: Sequence[Cell]) -> None:
        self._of = len(cells)

    def begins(self, cell: Cell, folder: Path) -> None:
        self._number += 1
        self._tail, self._began = Tail(folder, cell.arm.workers or self._plan.workers), time.monotonic()
        if self._bar is None:
            self._say(f"{self._place} {cell.in_words}: begins")
        self.looks(cell, folder)

    def looks(self, cell: Cell, folder: Path) -> None:
        if self._interrupt.asked:
            self._say_once("ending the run under way (within some 10 seconds; once more ends it at once)")
        if self._server.why_not_forking is not None:
            self._say_once(f"every worker imports torch again, since the fork server {self._server.why_not_forking}")
        if self._bar is None or self._tail is None:
            return
        self._tail.look()
        steps = self._lengths.get(cell.arm.name)
        share = min(1.0, self._tail.steps / steps) if steps else None
        line = f"{cell.in_words}: {self._tail.in_words}"
        self._bar.show(self._number, self._of, share or 0.0, self._left(share), line)

    def ends(self, cell: Cell, folder: Path, ended: Conclusion, seconds: float) -> None:
        assert self._tail is not None
        self._tail.look()
        self._seconds.append(seconds)
        if ended.status == 0:
            self._lengths[cell.arm.name] = self._tail.steps
            self._say(f"{self._place} {cell.in_words}: {seconds_in_words(seconds)}{self._quality()}")
            return
        why = (ended.why or "it gave no reason").splitlines()
        self._say(f"{self._place} {cell.in_words}: failed with status {ended.status}: {why[0]}")
        for line in why[1:]:
            self._say_once(line)

    def chooses(self, arm: str, factor: float | None) -> None:
        if factor is None:
            self._say(f"{arm}: no trial of a learning rate ended well, so it goes on with the script's own")
            return
        tried = sorted(self._plan.learning_rates or ())
        edge = factor in (tried[0], tried[-1]) and len(tried) > 1
        self._say(
            f"{arm}: learning rate x{factor:g} is best"
            + (", at the edge of what was tried: a wider --tune-lr may find a better one" if edge else "")
        )

    @property
    def _place(self) -> str:
        return f"[{self._number}/{self._of}]"

    def _quality(self) -> str:
        metric = self._plan.metric
        value = None if metric is None or self._tail is None else self._tail.quality(metric.name)
        return "" if metric is None or value is None else f", {metric.name} {number_in_words(value)}"

    def _left(self, share: float | None) -> float | None:
        """Return the estimated seconds until the end of all runs; None before the end of the first.

        `share` is how much is done of the run under way, where an earlier one of its arm tells.
        """
        if not self._seconds:
            return None
        mean = sum(self._seconds) / len(self._seconds)
        elapsed = time.monotonic() - self._began
        of_this = max(0.0, mean - elapsed) if share is None or share < _TELLING else elapsed * (1 - share) / share
        return of_this + mean * (self._of - self._number)

    def _say(self, line: str) -> None:
        if self._bar is None:
            tell(f"quorate: {line}\n")
        else:
            self._bar.say(line)

    def _say_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)


class _Bar:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self.live = Live(console=self._console, auto_refresh=False, transient=True)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False)

    def show(self, number: int, of: int, share: float, left: float | None, line: str) -> None:
        """Show run `number` of `of`, its share done, the seconds left in all, and a line about it."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        words = f"run {number} of {of}" + ("" if left is None else f", about {time_left_in_words(left)} left")
        grid.add_row(ProgressBar(total=of, completed=number - 1 + share, width=40), Text(words))
        self.live.update(Group(grid, Text(line)), refresh=True)
