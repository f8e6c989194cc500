"""The goodput so far of a run under way, reported after events that cost steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quorate.records.live_figures import LiveFigures
from quorate.records.records import LiveRows, records_of

AFTER = 5.0
"""Seconds between a death, a stop or a slow time and the sentence."""
BETWEEN = 10.0
"""Seconds between two sentences, at least."""
PIECE = 1 << 16
"""Bytes that are read in one look: a few milliseconds."""
LONGEST = 600.0
"""Seconds between two of them where nothing more has happened: each time twice as many, up to these."""


class LiveGoodput:
    """Goodput of the run in `folder`, from the rows of its first worker, or of the next if that has died.

    `look` is called every few milliseconds, and reads the records when a sentence is due, a piece at a time. The figure
    is that of `LiveFigures`: as one rank can tell, and so not quite what the report says in the end. Cost: nothing
    before the first failure; all that the worker has written is read once.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._now = folder, now
        self._failures = 0
        self._due: float | None = None
        self._told = float("-inf")
        self._gap = BETWEEN
        self._figures = LiveFigures()
        self._leader, self._rows = 0, LiveRows(records_of(folder, 0))
        self._host: object = None
        self._is_known = True
        """By what clock its rows are."""
        self._until, self._since = float("-inf"), float("-inf")
        """When the newest row that counts was written, and the newest one of the workers before."""
        self._has_stepped = False
        """Since the last sentence."""

    def look(self, failures: int, alive: Sequence[int]) -> str | None:
        """Return the sentence that is due, if any, after so many `failures`; `alive` are the workers that have not
        ended."""
        now = self._now()
        if failures > self._failures:
            self._failures, self._gap = failures, BETWEEN
            due = max(now + AFTER, self._told + BETWEEN)
            self._due = due if self._due is None else min(self._due, due)
        if self._due is None or now < self._due or not alive or not self._has_read(min(alive)):
            return None
        self._due, self._told = now + self._gap, now
        self._gap = min(2 * self._gap, LONGEST)
        share, has_stepped, self._has_stepped = self._figures.goodput, self._has_stepped, False
        return f"goodput so far {min(share, 1.0):.0%}" if has_stepped and share is not None else None

    def _has_read(self, leader: int) -> bool:
        """Take in a piece of the new rows; whether those of `leader`, and of the workers before it, are all read."""
        for row in self._rows.look(PIECE):
            self._take(row)
        if self._rows.has_more or not self._is_known:
            return False
        if self._leader < leader:
            self._leader, self._since = self._leader + 1, self._until
            self._rows = LiveRows(records_of(self._folder, self._leader))
            return False
        return True

    def _take(self, row: dict[str, Any]) -> None:
        moment = row.get("end", row.get("time"))
        at = float(moment) if isinstance(moment, int | float) else float("-inf")
        if row["kind"] == "start":
            host = row.get("host")
            self._is_known = self._host in (None, host)
            self._host = self._host or host
            if self._leader == 0:  # what was before it is of a run that is gone on with
                self._figures = LiveFigures()
        if not self._is_known or (self._leader and at <= self._since):
            return  # the worker before has recorded it
        self._figures.row(row)
        self._has_stepped |= row["kind"] == "step"
        self._until = max(self._until, at)
