"""The goodput so far of a run under way, told behind what costs it steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quorate.core.live_figures import LiveFigures
from quorate.core.live_rows import LiveRows
from quorate.core.records import records_of

AFTER = 5.0
"""Seconds between a death, a stop or a slow time and the sentence."""
BETWEEN = 10.0
"""Seconds between two sentences, at least."""
LONGEST = 600.0
"""Seconds between two of them where nothing more has happened: each time twice as many, up to these."""


class LiveGoodput:
    """Of the run in `folder`, out of the rows of its first worker, and of the next where that has died.

    `look` is called every few milliseconds, and reads the records when a sentence is due. The figure is that of
    `LiveFigures`: as one rank can tell, and so not quite what the report says in the end. Cost: nothing before the
    first failure; after it, what the worker has written since the last sentence is read, once per sentence.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._now = folder, now
        self._failures = 0
        self._due: float | None = None
        self._told = float("-inf")
        self._gap = BETWEEN
        self._figures = LiveFigures()
        self._leader, self._rows = -1, LiveRows(folder)
        self._host: object = None
        self._until = float("-inf")
        """When the newest row that counts was written."""

    def look(self, failures: int, alive: Sequence[int]) -> str | None:
        """What is to be told now, if anything: there were so many `failures`, and these workers have not ended."""
        now = self._now()
        if failures > self._failures:
            self._failures, self._gap = failures, BETWEEN
            due = max(now + AFTER, self._told + BETWEEN)
            self._due = due if self._due is None else min(self._due, due)
        if self._due is None or now < self._due or not alive:
            return None
        self._due, self._told = now + self._gap, now
        self._gap = min(2 * self._gap, LONGEST)
        is_further = self._read(min(alive))
        share = self._figures.goodput
        return f"goodput so far {share:.0%}" if is_further and share is not None else None

    def _read(self, leader: int) -> bool:
        """Take in the new rows; whether there was a step among them."""
        is_next = leader != self._leader
        if is_next:
            self._leader, self._rows = leader, LiveRows(records_of(self._folder, leader))
        since, steps = self._until, 0
        for row in self._rows.look():
            at = _time_of(row)
            if row["kind"] == "start" and not self._goes_by_our_clock(row):
                return False
            if is_next and since > float("-inf") and (at is None or at <= since):
                continue  # the one before has told it
            if row["kind"] == "start":  # what was before it is of a run that is gone on with
                self._figures = LiveFigures()
            self._figures.row(row)
            steps += row["kind"] == "step"
            self._until = self._until if at is None else max(self._until, at)
        return steps > 0

    def _goes_by_our_clock(self, start: dict[str, Any]) -> bool:
        """Whether its worker is on the host of those that were read before; else nothing is told any more."""
        if self._host is not None and start.get("host") != self._host:
            self._due = float("inf")
            return False
        self._host = start.get("host")
        return True


def _time_of(row: dict[str, Any]) -> float | None:
    at = row.get("end", row.get("time"))
    return float(at) if isinstance(at, int | float) else None
