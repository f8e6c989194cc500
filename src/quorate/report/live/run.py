"""`LiveRun`: one run as far as its records go, read a little at a time; a run that has ended is one as well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quorate.records.live_figures import LiveFigures
from quorate.records.records import ranks_in
from quorate.records.rows import Distribute, Epoch, Gone, Joined, Step
from quorate.records.run_files import OutcomeFile, RunFile
from quorate.report.figures.lateness import Skew, meetings_of, skew_of
from quorate.report.live.ranks import LiveRank
from quorate.report.live.series import Series
from quorate.report.reading.clocks import RunClock, run_clocks
from quorate.report.reading.sound import read_json, row_of, sound_parts

_LIST_EVERY = 1.0
"""Seconds between two listings of the folder."""
_ROUND_POINTS = 100
"""Points of the curve of contributors, which are whole numbers: means of many are smoother."""
LOGGED = 6
"""The most names, of those that the script logs, of which a curve is kept."""
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
        self.losses, self.rates, self.sent, self.taken_in = Series(), Series(), Series(), Series(_ROUND_POINTS)
        """By time since the first step: the leader's loss; its steps per second; the bytes per second that it sends;
        contributors of each round."""
        self.curves: dict[str, Series] = {}
        """By time since the first step: numbers that the leader logs."""
        self._before: dict[str, tuple[float, int]] = {}
        self._clocks: dict[int, RunClock] = {}
        self._offsets = -1
        self._base = 0.0
        """Seconds of earlier sessions, in a run that was continued."""
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
    def elapsed(self) -> float:
        """Seconds from the first step to the newest one."""
        leader = self.leader
        return 0.0 if leader is None or self.began is None else max(0.0, leader.recent[-1].end - self.began)

    @property
    def left(self) -> float | None:
        """Seconds until the end of a run with a limit (`--seconds`); else None."""
        seconds = self.about.get("seconds_limit")
        return max(0.0, float(seconds) - self.elapsed) if isinstance(seconds, int | float) and self.elapsed else None

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
        if kind == "start" and self.began is not None:
            self._base, self.began, self._before = max((x for x, _ in self.rates.points), default=0.0), None, {}
        elif kind == "step" and rank.recent and rank.recent[-1].step == row.get("step"):
            self._step(rank)
        elif kind == "distribute" and self.strategy is None:
            self.strategy = sound_parts(row, Distribute).get("strategy")
        elif kind == "epoch" and (begun := row_of(Epoch, row)) is not None:
            before, self.epoch = self.epoch, EpochProgress(begun.epoch, begun.batches, rank.steps)
            if before is not None and before.number + 1 == begun.epoch and rank.steps > before.begun_at:
                self.epoch.steps = rank.steps - before.begun_at
        elif kind == "log" and isinstance(row.get("values"), dict):
            self._logged(row)

    def _step(self, rank: LiveRank) -> None:
        step = rank.recent[-1]
        self.began = step.begin if self.began is None else min(self.began, step.begin)
        at = self._since(step.end)
        if step.loss is not None and abs(step.loss) < float("inf"):
            self.losses.add(at, step.loss)
        for name, series, count in (("steps", self.rates, step.step), ("bytes", self.sent, rank.bytes_out)):
            since, counted = self._before.setdefault(name, (at, count))
            if at - since >= 0.25 or step.step == 1:
                if at > since and count > counted:
                    series.add(at, (count - counted) / (at - since))
                self._before[name] = at, count

    def _round(self, row: dict[str, Any]) -> None:
        number, taken, at = row.get("number"), row.get("contributors"), row.get("time")
        if not (isinstance(number, int) and isinstance(taken, dict) and isinstance(at, int | float)):
            return
        if number > self.rounds:
            self.rounds = number
            self._contributors.append(len(taken))
            if self.began is not None:
                self.taken_in.add(self._since(at), float(len(taken)))

    def _logged(self, row: dict[str, Any]) -> None:
        at = row.get("time")
        for name, value in row["values"].items():
            self.logged[name] = value
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
            if not (is_number and isinstance(at, int | float)):
                continue
            if name in self.curves or len(self.curves) < LOGGED:
                self.curves.setdefault(name, Series()).add(self._since(at), float(value))

    def _since(self, at: float) -> float:
        return self._base + (0.0 if self.began is None else max(0.0, at - self.began))
