"""`LiveRun`: one run as far as its records tell by now, read a little at a time; a run of yesterday is one as well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from quorate.records.live_figures import LiveFigures
from quorate.records.records import ranks_in
from quorate.records.rows import Gone, Joined, Step
from quorate.records.run_files import OutcomeFile, RunFile
from quorate.report.figures.lateness import Skew, skew_of
from quorate.report.live.ranks import LiveRank
from quorate.report.live.series import Series
from quorate.report.reading.clocks import RunClock, run_clocks
from quorate.report.reading.meetings import meetings_of
from quorate.report.reading.rows import row_of, sound_parts
from quorate.report.reading.sound import read_json

_LIST_EVERY = 1.0
"""Seconds between two listings of the folder."""
_ROUND_POINTS = 100
"""Of the curve of contributors, which are whole numbers: means of many say more."""
LOGGED = 6
"""Names that the script logs of which a curve is kept, at most."""
_LEAST_BYTES = 1 << 12
"""Read of each rank in one look: some 12 steps."""
_SHOWN_ROUNDS = 200
"""Rounds of which the mean number of contributors is told."""


class LiveRun:
    """The run in `folder`. `look` takes in what its ranks have written since; all else is what that has told.

    What is missing or damaged is left out. Times are seconds of the run's clock. With `most_bytes` no look reads more
    of all ranks together: what was written before the newest ones is skipped, and what is there already when it is
    made. Cost: each row is read once, some 20 µs; a look where nothing is new opens each rank's file.
    """

    def __init__(
        self, folder: Path, *, most_bytes: int | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder = folder
        self._most_bytes, self._now = most_bytes, now
        self._listed = float("-inf")
        self.about: dict[str, Any] = {}
        """`run.json`; empty where there is none."""
        self.outcome: dict[str, Any] | None = None
        """`outcome.json`; None while the run goes on, or where nobody watched it end."""
        self.ranks: dict[int, LiveRank] = {}
        self.figures = LiveFigures()
        self.deaths: dict[int, Gone] = {}
        self.joinings: dict[int, Joined] = {}
        self.rounds = 0
        """The number of the newest one; 0 where rounds are not recorded."""
        self._contributors: deque[int] = deque(maxlen=_SHOWN_ROUNDS)
        self.logged: dict[str, float | str | bool | None] = {}
        """What the script has logged last, by name."""
        self.began: float | None = None
        self.losses, self.rates, self.sent, self.taken_in = Series(), Series(), Series(), Series(_ROUND_POINTS)
        """By time since the first step: the leader's loss; its steps per second; the bytes per second that it sends;
        contributors of each round."""
        self.curves: dict[str, Series] = {}
        """Likewise: numbers that the leader logs."""
        self._before: dict[str, tuple[float, int]] = {}
        self._clocks: dict[int, RunClock] = {}
        self._offsets = -1
        self._base = 0.0
        """Seconds of the sessions before this one, in a run that was gone on with."""
        if most_bytes is not None:
            self._list()
            for rank in self.ranks.values():
                rank.skip_all()

    def look(self, *, lists: bool = False) -> None:
        """Take in what is new; new files at most once a second, unless it `lists` the folder now."""
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
                self.ranks[rank] = LiveRank(self.folder, rank, self._told)
        self.ranks = dict(sorted(self.ranks.items()))

    @property
    def has_more(self) -> bool:
        """Whether there are rows that the newest look has left for the next."""
        return any(rank.has_more for rank in self.ranks.values())

    @property
    def size(self) -> int:
        """Workers at the start; 0 where nobody has said so yet."""
        said = [self.about.get("workers"), *(one.start.get("size") for one in self.ranks.values())]
        return next((size for size in said if isinstance(size, int)), 0)

    @property
    def joined(self) -> int:
        """How many of the workers at the start have begun their records."""
        return sum(1 for one in self.ranks.values() if one.rank < self.size and one.start)

    @property
    def is_virtual(self) -> bool:
        """Whether its times are virtual."""
        return any(one.start.get("clock") == "virtual" for one in self.ranks.values())

    @property
    def workers(self) -> list[LiveRank]:
        """Those that have not died, by rank."""
        return [one for one in self.ranks.values() if one.rank not in self.deaths and not one.is_server]

    @property
    def leader(self) -> LiveRank | None:
        """The first of them that has taken a step."""
        return next((one for one in self.workers if one.recent), None)

    @property
    def has_ended(self) -> bool:
        """Whether it is known to be over."""
        is_left = bool(self.workers) and self.joined >= self.size and all(one.has_ended for one in self.workers)
        return self.outcome is not None or (is_left and not self.has_more)

    @property
    def examples_rate(self) -> float | None:
        """Examples per second of all workers; None where one of them does not say."""
        rates = [one.examples_rate for one in self.workers if one.recent]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known and len(known) == len(rates) else None

    @property
    def contributors(self) -> float | None:
        """The mean of the newest rounds; None where rounds are not recorded."""
        return sum(self._contributors) / len(self._contributors) if self._contributors else None

    @property
    def numbers(self) -> dict[str, float]:
        """What the script has logged last, by name, where that is a number."""
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
        """Seconds until the run ends, where it was told how long to train (`--seconds`)."""
        seconds = self.about.get("seconds_limit")
        return max(0.0, float(seconds) - self.elapsed) if isinstance(seconds, int | float) and self.elapsed else None

    def skew(self) -> Skew | None:
        """Who is slow, of the recent steps of all that train; None where no two ranks can be held side by side."""
        steps = {one.rank: self._on_one_clock(one) for one in self.workers if len(one.recent) > 1}
        if len(steps) < 2:
            return None
        newcomers = {rank for rank in steps if rank >= self.size}
        is_together = False if self.figures.has_rounds else None
        return skew_of(meetings_of(steps, is_together=is_together), steps, newcomers=newcomers)

    def _on_one_clock(self, one: LiveRank) -> list[Step]:
        told = sum(len(other.offsets) for other in self.ranks.values()) + len(self.ranks)
        if told != self._offsets:
            self._offsets = told
            known = {rank: other.start for rank, other in self.ranks.items() if other.start}
            self._clocks = run_clocks(known, {rank: self.ranks[rank].offsets for rank in known})
        clock = self._clocks.get(one.rank)
        if clock is None or clock.is_reference:
            return list(one.recent)
        return [replace(s, begin=clock.at(s.begin), arrive=clock.at(s.arrive), end=clock.at(s.end)) for s in one.recent]

    def _told(self, one: LiveRank, row: dict[str, Any]) -> None:
        """A row of `one`, as it is read."""
        kind = row["kind"]
        if kind == "gone" and (death := row_of(Gone, row)) is not None:
            self.deaths.setdefault(death.rank, death)
        elif kind == "joined" and (joining := row_of(Joined, row)) is not None:
            self.joinings.setdefault(joining.rank, joining)
        elif kind == "round":
            self._round(row)
        if one is not (self.leader or next(iter(self.ranks.values()))):
            return
        self.figures.row(row)
        if kind == "start" and self.began is not None:
            self._base, self.began, self._before = max((x for x, _ in self.rates.points), default=0.0), None, {}
        elif kind == "step" and one.recent and one.recent[-1].step == row.get("step"):
            self._step(one)
        elif kind == "log" and isinstance(row.get("values"), dict):
            self._logged(row)

    def _step(self, one: LiveRank) -> None:
        step = one.recent[-1]
        self.began = step.begin if self.began is None else min(self.began, step.begin)
        at = self._since(step.end)
        if step.loss is not None and abs(step.loss) < float("inf"):
            self.losses.add(at, step.loss)
        for name, series, count in (("steps", self.rates, step.step), ("bytes", self.sent, one.bytes_out)):
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
        """Seconds of training, in all sessions, until then."""
        return self._base + (0.0 if self.began is None else max(0.0, at - self.began))
