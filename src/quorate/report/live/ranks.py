"""The rows that one rank of a run under way has written so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quorate.records.records import LiveRows, records_of
from quorate.records.rows import ClockOffset, Start, Step
from quorate.report.reading.sound import row_of, sound_parts

RECENT = 50
"""Steps over which the rate and the lateness are measured."""
PIECE = 1 << 20
"""Bytes read of a rank in one look; a longer file takes several."""


class LiveRank:
    """The recent steps of a rank and its state; `tells` is called with every row, in order."""

    def __init__(self, folder: Path, rank: int, tells: Callable[[LiveRank, dict[str, Any]], None]) -> None:
        self.rank = rank
        self._rows, self._tells = LiveRows(records_of(folder, rank)), tells
        self._has_begun = False
        """Whether the first row of the file has been read or skipped."""
        self.start: dict[str, Any] = {}
        self.optimizer: str | None = None
        """The channel of the first optimizer, whose steps count."""
        self.recent: deque[Step] = deque(maxlen=RECENT)
        self.offsets: list[ClockOffset] = []
        self.has_ended = False
        self.bytes_out = 0

    @property
    def has_more(self) -> bool:
        """Whether the newest look has left rows for the next one."""
        return self._rows.has_more

    @property
    def is_server(self) -> bool:
        """Whether the rank keeps parameters and takes no steps."""
        return self.start.get("server") is True

    def skip_all(self) -> None:
        """Skip all rows that were written before."""
        self._rows.skip(0)
        self._has_begun = True

    def look(self, newest_bytes: int | None = None) -> None:
        """Read new rows; with `newest_bytes`, only so many bytes at the end."""
        if newest_bytes is not None and self._has_begun:
            self._rows.skip(newest_bytes)
        for row in self._rows.look(PIECE):
            kind = row["kind"]
            self._has_begun = True
            if kind == "start":
                self._begin(row)
            elif kind == "step":
                self._step(row)
            elif kind == "clock" and (offset := row_of(ClockOffset, row)) is not None:
                self.offsets.append(offset)
            elif kind == "end":
                self.has_ended = True
            self._tells(self, row)

    def _begin(self, row: dict[str, Any]) -> None:
        self.start, self.has_ended = sound_parts(row, Start), False
        self.recent.clear()
        self.offsets.clear()

    def _step(self, row: dict[str, Any]) -> None:
        step = row_of(Step, row)
        if step is None:
            return
        self.optimizer = self.optimizer or step.optimizer
        self.bytes_out += step.bytes_out
        if step.optimizer == self.optimizer:
            self.recent.append(step)

    @property
    def steps(self) -> int:
        """The number of the last step."""
        return self.recent[-1].step if self.recent else 0

    @property
    def rate(self) -> float | None:
        """Steps per second, over the recent steps."""
        return _rate(len(self.recent) - 1, self._seconds)

    @property
    def examples_rate(self) -> float | None:
        """Examples per second; None if steps do not count them."""
        counts = [step.examples for step in list(self.recent)[1:]]
        examples = [count for count in counts if count is not None]
        return _rate(sum(examples), self._seconds) if examples and len(examples) == len(counts) else None

    @property
    def _seconds(self) -> float:
        return self.recent[-1].end - self.recent[0].end if len(self.recent) > 1 else 0.0

    @property
    def loss(self) -> float | None:
        """The mean of the last few known and finite losses; the last one if none is finite."""
        losses = [step.loss for step in list(self.recent)[-5:] if step.loss is not None]
        finite = [loss for loss in losses if math.isfinite(loss)]
        if finite:
            return sum(finite) / len(finite)
        return losses[-1] if losses else None


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0.0 else None
