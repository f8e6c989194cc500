"""The rows of a run that was resumed, as if it had not been interrupted: repeated steps count once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from quorate.records.rows import Step
from quorate.report.reading.sound import is_count, is_number

_TIMES = ("begin", "arrive", "end", "time")
_SAME_CLOCK_SECONDS = 1.0


class Found(Protocol):
    """The rows of one rank that have been read so far."""

    steps: list[Step]
    logs: list[Any]


class Sessions:
    """The sessions of one rank's file, each of which begins with a row `start`."""

    def __init__(self) -> None:
        self._begun: Mapping[str, Any] | None = None
        self._shift = 0.0
        self._is_resuming = False

    @property
    def is_moved(self) -> bool:
        """Whether this session's clock is another than the first session's, to which nothing was measured."""
        return self._shift != 0.0

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row with its times on the first session's clock."""
        if row["kind"] == "start":
            self._start(row)
        if not self._shift:
            return row
        return {key: value + self._shift if key in _TIMES and is_number(value) else value for key, value in row.items()}

    def _start(self, row: Mapping[str, Any]) -> None:
        if self._begun is None:
            self._begun = row
            return
        self._is_resuming = not is_newcomer(row)  # that one is another worker, with a step 1 of its own
        if all(is_number(session.get(name)) for session in (row, self._begun) for name in ("wall", "now")):
            shift = (row["wall"] - row["now"]) - (self._begun["wall"] - self._begun["now"])
            self._shift = shift if abs(shift) > _SAME_CLOCK_SECONDS else 0.0  # the machine was started anew

    def step(self, new: Step, records: Found) -> tuple[float, float] | None:
        """Drop the steps that are repeated from `new` on; return the time of the gap, if there was one."""
        if not self._is_resuming:
            return None
        self._is_resuming = False
        records.steps = [step for step in records.steps if step.step < new.step]
        records.logs = [log for log in records.logs if log.step < new.step]
        return (records.steps[-1].end, new.begin) if records.steps else None


def is_newcomer(start: Mapping[str, Any]) -> bool:
    """Return whether the worker with this `start` row joined after the start: ranks of the start are below the size."""
    is_further = is_count(start.get("rank")) and is_count(start.get("size")) and bool(start["rank"] >= start["size"])
    return is_further and not start.get("server")
