"""Figures of a run under way, from the rows of the rank that records rounds and deaths.

- Merges of learners: how many learners were in the newest, their mean age weighted by shares, and the share of each.
- `window`: seconds that the newest round waited for more workers than had to call.
- `rho` and `gain` of the newest outer step.
- `noise scale` of gradients, in gradients of one worker: the critical batch.
- `goodput`: useful steps over the steps that the workers at the start could have made by now. The duration of a step is
  the median of the last ones of this rank, or for learners the median of their own figures. With rounds, the useful
  steps are those that rounds have taken in, so the figure is too low in the first rounds. Without rounds, each step of
  this rank counts for every worker that was alive. The report counts the steps of all ranks instead.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quorate.core.gradient_noise import scale_of

_RECENT = 256
"""Number of steps of which the median is taken."""
SHARES = 8
"""Greatest number of workers whose share is shown: the first ones."""


class LiveFigures:
    """The figures of one run. Rows are passed in order; damaged or incomplete rows are ignored."""

    def __init__(self) -> None:
        self.newest: dict[str, float] = {}
        """The newest figures by name, without the goodput."""
        self.has_rounds = False
        self.has_failed = False
        """Whether a worker has died."""
        self._size = self._alive = 0
        self._fragments: int | None = None
        """Number of fragments of replicas that differ, such as learners; None where gradients are counted."""
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._seconds: dict[int, float] = {}
        """By rank: seconds of a step, as learners have reported them."""
        self._began: float | None = None
        self._useful = self._now = 0.0

    def row(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Take in a row, and return the figures that it has changed, by name."""
        take = _TAKES.get(str(values.get("kind")))
        try:
            changed = {} if take is None else take(self, values)
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}
        self.newest |= changed
        return changed

    def _start(self, row: Mapping[str, Any]) -> dict[str, float]:
        self._size = self._alive = int(row["size"])
        return {}

    def _distribute(self, row: Mapping[str, Any]) -> dict[str, float]:
        if row["optimizer"] == "1" and row.get("replicas_differ", False):
            fragments = (row["settings"] or {}).get("fragments", 1)
            self._fragments = fragments if isinstance(fragments, int) and fragments > 0 else 1
        return {}

    def _death(self, row: Mapping[str, Any]) -> dict[str, float]:
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
        changed: dict[str, float] = {}
        if row.get("window") is not None:
            changed["window"] = float(row["window"])
        taken = {int(rank): gradients for rank, gradients in row["contributors"].items()}
        payloads: dict[int, Sequence[Any]] = {int(rank): listed for rank, listed in (row.get("told") or {}).items()}
        settles = row.get("settles") is True
        merge = merged_in(int(row["number"]), payloads, taken, settles=settles)
        if merge is not None:
            changed["merged"] = float(len(merge.shares))
            changed["merge age"] = sum(share * age for _, share, age in merge.shares)
            shares = dict.fromkeys(range(min(self._size, SHARES)), 0.0)
            shares |= {rank: share for rank, share, _ in merge.shares if rank < SHARES}
            changed |= {f"share of rank {rank}": share for rank, share in shares.items()}
            newest = {rank: listed[-1] for rank, listed in payloads.items()}
            self._seconds |= {rank: 1 / payload["speed"] for rank, payload in newest.items() if payload.get("speed")}
        if row.get("optimizer", "1") == "1":
            if not self.has_rounds:
                self.has_rounds, self._useful = True, 0.0
            self._now = float(row["time"])
            if self._fragments is None:
                self._useful += sum(count for gradients in taken.values() for _, count in gradients)
            else:
                self._useful += float(row["weight"]) / (1 if settles else self._fragments)
        return changed

    @property
    def goodput(self) -> float | None:
        """The goodput so far; None before the first step."""
        step = statistics.median(self._seconds.values() or self._durations or [0.0])
        if self._began is None or not (step > 0 and self._now > self._began and self._size):
            return None
        return self._useful * step / (self._size * (self._now - self._began))


_TAKES = {
    "start": LiveFigures._start,
    "distribute": LiveFigures._distribute,
    "gone": LiveFigures._death,
    "joined": LiveFigures._joined,
    "outer": LiveFigures._outer,
    "noise": LiveFigures._noise,
    "step": LiveFigures._step,
    "round": LiveFigures._round,
}


class Merged(NamedTuple):
    """The learners in a merge."""

    shares: tuple[tuple[int, float, int], ...]
    """Triples of rank, share of the weight, and age."""
    fragment: int | None
    """Number of the fragment; None where all are merged."""


def merged_in(
    number: int, payloads: Mapping[int, Sequence[Any]], taken: Mapping[int, Sequence[Sequence[int]]], *, settles: bool
) -> Merged | None:
    """Return the merge of round `number`; None if nothing was merged, or weights are not those of learners.

    `payloads`, `taken` and `settles` are `told`, `contributors` and `settles` of the `round` row.
    """
    weights: dict[int, float] = {}
    fragments = 1
    for rank, listed_payloads in payloads.items():
        newest = listed_payloads[-1] if listed_payloads else None
        listed = newest.get("weights") if isinstance(newest, dict) else None
        if not isinstance(listed, list) or not all(isinstance(weight, int | float) for weight in listed) or not listed:
            return None
        fragments = len(listed)
        weights[rank] = sum(listed) / fragments if settles else listed[(number - 1) % fragments]
    total = sum(weights.values())
    if not total > 0:
        return None
    ages = {rank: gradients[-1][0] // fragments if gradients else 0 for rank, gradients in taken.items()}
    shares = tuple((rank, weight / total, ages.get(rank, 0)) for rank, weight in sorted(weights.items()) if weight)
    return Merged(shares, None if settles else (number - 1) % fragments)
