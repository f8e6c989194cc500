"""Figures of a run under way, out of the rows of the rank that tells of rounds and deaths: what agreeing costs by now.

- of merges of learners: how many were in the newest, how old they were in the mean, by shares, and each one's share;
- `window`: seconds that the newest round waited for more workers than had to call;
- `rho` and `gain` of the newest outer step;
- `noise scale`, of gradients, in gradients of one worker: the critical batch;
- `goodput`: useful steps over those that the workers at the start could have made by now, a step taking as long as the
  median of the last ones of this rank; of learners, as the median of what they told. Useful is what rounds have taken
  in, so that it is too low in the first rounds; without rounds, as many steps as this rank has made for every worker
  that was alive in them. The report, in the end, counts the steps of all ranks.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.core.gradient_noise import scale_of
from quorate.records.merges import merged_in

_RECENT = 256
"""Steps of which the median is taken."""
SHARES = 8
"""Workers whose share is told, at most: the first ones."""


class LiveFigures:
    """Of one run; takes rows in order. What is damaged or missing in a row is left out."""

    def __init__(self) -> None:
        self.newest: dict[str, float] = {}
        """By name, but for the goodput."""
        self.has_rounds = False
        self.has_failed = False
        """Whether a worker has died."""
        self._size = self._alive = 0
        self._fragments: int | None = None
        """Of learners, or other replicas that differ; None where gradients are counted."""
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._seconds: dict[int, float] = {}
        """Of a step, by rank, as learners have told it."""
        self._began: float | None = None
        self._useful = self._now = 0.0

    def row(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Take in a row; returns the figures that are new by it, by name."""
        take = _TAKES.get(str(values.get("kind")))
        try:
            found = {} if take is None else take(self, values)
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}
        self.newest |= found
        return found

    def _start(self, row: Mapping[str, Any]) -> dict[str, float]:
        self._size = self._alive = int(row["size"])
        return {}

    def _distribute(self, row: Mapping[str, Any]) -> dict[str, float]:
        if row["optimizer"] == "1" and row.get("replicas_differ", False):
            fragments = (row["settings"] or {}).get("fragments", 1)
            self._fragments = fragments if isinstance(fragments, int) and fragments > 0 else 1
        return {}

    def _gone(self, row: Mapping[str, Any]) -> dict[str, float]:
        self.has_failed, self._alive = True, int(row["left"])
        return {}

    def _joined(self, row: Mapping[str, Any]) -> dict[str, float]:
        self._alive = int(row["live"])
        return {}

    def _outer(self, row: Mapping[str, Any]) -> dict[str, float]:
        return {name: float(row[name]) for name in ("rho", "gain") if row.get(name) is not None}

    def _noise(self, row: Mapping[str, Any]) -> dict[str, float]:
        scale = scale_of(float(row["signal"]), float(row["noise"])) if row["optimizer"] == "1" else None
        return {} if scale is None else {"noise scale": scale}

    def _step(self, row: Mapping[str, Any]) -> dict[str, float]:
        if row["optimizer"] != "1":
            return {}
        begin, self._now = float(row["begin"]), float(row["end"])
        self._began = begin if self._began is None else self._began
        self._durations.append(self._now - begin)
        self._useful += 0 if self.has_rounds else self._alive
        return {}

    def _round(self, row: Mapping[str, Any]) -> dict[str, float]:
        found: dict[str, float] = {}
        if row.get("window") is not None:
            found["window"] = float(row["window"])
        taken = {int(rank): given for rank, given in row["contributors"].items()}
        told: dict[int, Sequence[Any]] = {int(rank): words for rank, words in (row.get("told") or {}).items()}
        settles = row.get("settles") is True
        merge = merged_in(int(row["number"]), told, taken, settles=settles)
        if merge is not None:
            found["merged"] = float(len(merge.given))
            found["merge age"] = sum(share * age for _, share, age in merge.given)
            shares = dict.fromkeys(range(min(self._size, SHARES)), 0.0)
            shares |= {rank: share for rank, share, _ in merge.given if rank < SHARES}
            found |= {f"share of rank {rank}": share for rank, share in shares.items()}
            self._seconds |= {rank: 1 / words[-1]["speed"] for rank, words in told.items() if words[-1].get("speed")}
        if row.get("optimizer", "1") == "1":
            if not self.has_rounds:
                self.has_rounds, self._useful = True, 0.0
            self._now = float(row["time"])
            if self._fragments is None:
                self._useful += sum(count for given in taken.values() for _, count in given)
            else:
                self._useful += float(row["weight"]) / (1 if settles else self._fragments)
        return found

    @property
    def goodput(self) -> float | None:
        """So far; None before there is a step."""
        step = statistics.median(self._seconds.values() or self._durations or [0.0])
        if self._began is None or not (step > 0 and self._now > self._began and self._size):
            return None
        return self._useful * step / (self._size * (self._now - self._began))


_TAKES = {
    "start": LiveFigures._start,
    "distribute": LiveFigures._distribute,
    "gone": LiveFigures._gone,
    "joined": LiveFigures._joined,
    "outer": LiveFigures._outer,
    "noise": LiveFigures._noise,
    "step": LiveFigures._step,
    "round": LiveFigures._round,
}
