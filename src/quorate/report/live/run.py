"""`LiveRun`: one run as far as its records go, read a little at a time; a run that has ended is one as well."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quorate.records.live_figures import LiveFigures
from quorate.records.records import LiveRows, ranks_in, records_of
from quorate.records.rows import ClockOffset, Distribute, Epoch, Gone, Joined, Start, Step
from quorate.records.run_files import OutcomeFile, RunFile
from quorate.report.figures.lateness import Skew, meetings_of, skew_of
from quorate.report.reading.clocks import RunClock, run_clocks
from quorate.report.reading.sound import read_json, row_of, sound_parts

RECENT = 50
"""Steps over which the rate and the lateness are measured."""
PIECE = 1 << 20
"""Bytes read of a rank in one look; a longer file takes several."""
_LIST_EVERY = 1.0
"""Seconds between two listings of the folder."""
_LEAST_BYTES = 1 << 12
"""The least bytes read of each rank in one look: some 12 steps."""
_SHOWN_ROUNDS = 200
"""Rounds over which the mean number of contributors is taken."""


@dataclass
class EpochProgress:
    """An epoch under way."""

    number: int
    """From 0."""
    steps: int
    """Steps that it takes: as the epoch before; of the first, its batches."""
    begun_at: int
    """Steps made before it."""

    def share(self, steps: int) -> float:
        """Return the share that is done after step `steps`."""
        return min(1.0, (steps - self.begun_at) / max(1, self.steps))


class LiveRun:
    """The run in `folder`. `look` reads the rows that its ranks have written since; all else is computed from them.

    Missing or damaged rows are left out. Times are seconds of the run's clock. With `most_bytes` no look reads more
    of all ranks together: rows before the newest ones are skipped, and all that were written before the object was
    made. Cost: each row is read once, some 20 µs; a look without new rows opens each rank's file.
    """

    def __init__(
        self, folder: Path, *, most_bytes: int | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder = folder
        self._most_bytes, self._now = most_bytes, now
        self._listed = float("-inf")
        self.about: dict[str, Any] = {}
        """`run.json`; empty if there is none."""
        self.outcome: dict[str, Any] | None = None
        """`outcome.json`; None while the run goes on, or if nobody watched its end."""
        self.ranks: dict[int, LiveRank] = {}
        self.figures = LiveFigures()
        self.deaths: dict[int, Gone] = {}
        self.joinings: dict[int, Joined] = {}
        self.rounds = 0
        """The number of the newest round; 0 if rounds are not recorded."""
        self._contributors: deque[int] = deque(maxlen=_SHOWN_ROUNDS)
        self.logged: dict[str, float | str | bool | None] = {}
        """The latest values that the script has logged, by name."""
        self.strategy: str | None = None
        """The strategy of the first optimizer that was distributed."""
        self.epoch: EpochProgress | None = None
        """The epoch of the leader; None where no loader of ours says it."""
        self.began: float | None = None
        self._clocks: dict[int, RunClock] = {}
        self._offsets = -1
        if most_bytes is not None:
            self._list()
            for rank in self.ranks.values():
                rank.skip_all()

    def look(self, *, lists: bool = False) -> None:
        """Read new rows; list new files at most once a second, unless `lists` is set."""
        if lists or self._now() - self._listed >= _LIST_EVERY:
            self._listed = self._now()
            self._list()
        share = None if self._most_bytes is None else max(_LEAST_BYTES, self._most_bytes // max(1, len(self.ranks)))
        for rank in list(self.ranks.values()):
            rank.look(share)

    def _list(self) -> None:
        self.about = self.about or sound_parts(read_json(self.folder / "run.json") or {}, RunFile)
        ended = read_json(self.folder / "outcome.json")
        self.outcome = None if ended is None else sound_parts(ended, OutcomeFile)
        for rank in ranks_in(self.folder):
            if rank not in self.ranks:
                self.ranks[rank] = LiveRank(self.folder, rank, self._add)
        self.ranks = dict(sorted(self.ranks.items()))

    @property
    def has_more(self) -> bool:
        """Whether the newest look has left rows for the next."""
        return any(rank.has_more for rank in self.ranks.values())

    @property
    def size(self) -> int:
        """Workers at the start; 0 if no file has their number yet."""
        sizes = [self.about.get("workers"), *(rank.start.get("size") for rank in self.ranks.values())]
        return next((size for size in sizes if isinstance(size, int)), 0)

    @property
    def joined(self) -> int:
        """The number of workers of the start that have begun their records."""
        return sum(1 for rank in self.ranks.values() if rank.rank < self.size and rank.start)

    @property
    def is_virtual(self) -> bool:
        """Whether its times are virtual."""
        return any(rank.start.get("clock") == "virtual" for rank in self.ranks.values())

    @property
    def workers(self) -> list[LiveRank]:
        """The workers that have not died, by rank."""
        return [rank for rank in self.ranks.values() if rank.rank not in self.deaths and not rank.is_server]

    @property
    def leader(self) -> LiveRank | None:
        """The first worker that has taken a step."""
        return next((rank for rank in self.workers if rank.recent), None)

    @property
    def has_ended(self) -> bool:
        """Whether the run is known to have ended."""
        is_left = bool(self.workers) and self.joined >= self.size and all(rank.has_ended for rank in self.workers)
        return self.outcome is not None or (is_left and not self.has_more)

    @property
    def examples_rate(self) -> float | None:
        """Examples per second of all workers; None if one does not count them."""
        rates = [rank.examples_rate for rank in self.workers if rank.recent]
        counted_rates = [rate for rate in rates if rate is not None]
        return sum(counted_rates) if counted_rates and len(counted_rates) == len(rates) else None

    @property
    def contributors(self) -> float | None:
        """The mean number of contributors of the newest rounds; None if rounds are not recorded."""
        return sum(self._contributors) / len(self._contributors) if self._contributors else None

    @property
    def numbers(self) -> dict[str, float]:
        """The latest values that the script has logged, by name, if they are numbers."""
        return {
            name: float(value)
            for name, value in self.logged.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def limit(self) -> float | None:
        """Seconds after which the run is to end (`--seconds`), if it has such a limit."""
        limit = self.about.get("seconds_limit")
        return float(limit) if isinstance(limit, int | float) and limit > 0.0 else None

    @property
    def share(self) -> float | None:
        """The share that is done of a run with a limit, else of the epoch; None if neither is known."""
        leader = self.leader
        if leader is None:
            return None
        if self.limit is not None and self.began is not None:
            return min(1.0, max(0.0, leader.recent[-1].end - self.began) / self.limit)
        return None if self.epoch is None else self.epoch.share(leader.steps)

    @property
    def left(self) -> float | None:
        """Seconds until the end of that run or epoch."""
        share = self.share
        if share is None or self.has_ended:
            return None
        if self.limit is not None:
            return (1.0 - share) * self.limit
        rate = None if self.leader is None else self.leader.rate
        return None if self.epoch is None or rate is None else (1.0 - share) * self.epoch.steps / rate

    def skew(self) -> Skew | None:
        """Return the skew of the recent steps of all that train; None if no two ranks can be compared."""
        steps = {worker.rank: self._on_one_clock(worker) for worker in self.workers if len(worker.recent) > 1}
        if len(steps) < 2:
            return None
        newcomers = {rank for rank in steps if rank >= self.size}
        is_together = False if self.figures.has_rounds else None
        return skew_of(meetings_of(steps, is_together=is_together), steps, newcomers=newcomers)

    def _on_one_clock(self, worker: LiveRank) -> list[Step]:
        count = sum(len(other.offsets) for other in self.ranks.values()) + len(self.ranks)
        if count != self._offsets:
            self._offsets = count
            starts = {rank: other.start for rank, other in self.ranks.items() if other.start}
            self._clocks = run_clocks(starts, {rank: self.ranks[rank].offsets for rank in starts})
        clock = self._clocks.get(worker.rank)
        if clock is None or clock.is_reference:
            return list(worker.recent)
        return [
            replace(step, begin=clock.at(step.begin), arrive=clock.at(step.arrive), end=clock.at(step.end))
            for step in worker.recent
        ]

    def _add(self, rank: LiveRank, row: dict[str, Any]) -> None:
        kind = row["kind"]
        if kind == "gone" and (death := row_of(Gone, row)) is not None:
            self.deaths.setdefault(death.rank, death)
        elif kind == "joined" and (joining := row_of(Joined, row)) is not None:
            self.joinings.setdefault(joining.rank, joining)
        elif kind == "round":
            self._round(row)
        if rank is not (self.leader or next(iter(self.ranks.values()))):
            return
        self.figures.row(row)
        if kind == "start":
            self.began = None
        elif kind == "step" and rank.recent:
            self.began = rank.recent[-1].begin if self.began is None else self.began
        elif kind == "distribute" and self.strategy is None:
            self.strategy = sound_parts(row, Distribute).get("strategy")
        elif kind == "epoch" and (begun := row_of(Epoch, row)) is not None:
            before, self.epoch = self.epoch, EpochProgress(begun.epoch, begun.batches, rank.steps)
            if before is not None and before.number + 1 == begun.epoch and rank.steps > before.begun_at:
                self.epoch.steps = rank.steps - before.begun_at
        elif kind == "log" and isinstance(row.get("values"), dict):
            self.logged |= row["values"]

    def _round(self, row: dict[str, Any]) -> None:
        number, contributors = row.get("number"), row.get("contributors")
        if isinstance(number, int) and isinstance(contributors, dict) and number > self.rounds:
            self.rounds = number
            self._contributors.append(len(contributors))


class LiveRank:
    """The rows that a rank has written so far, as recent steps and a state; `tells` is called with each row."""

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
