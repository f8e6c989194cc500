"""Rounds of a made run in which one worker calls for every round, and whatever has come by then is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorate.records.rows import Step

Rows = list[list[Step | tuple[str, dict[str, Any]]]]
FORMS = 0.0005
"""Seconds from the caller's arrival until the round is there."""


def put_rounds(rows: Rows, caller: int, starts: Sequence[float]) -> None:
    """Let the steps of `rows`, by rank, say what rounds they applied, and rank 0 have rows for them.

    `starts` is what each rank's clock shows when training begins. The caller's steps are the rounds. Workers that go
    to an evaluation, or have ended, settle: one more round takes in what is left, if anything is.
    """
    made = _Rounds(rows, starts)
    events: list[tuple[float, int, int, int]] = []
    for rank, own in enumerate(rows):
        for place, row in enumerate(own):
            if isinstance(row, Step):
                arrive, end = row.arrive - starts[rank], row.end - starts[rank]
                events += [(arrive, 0, rank, place), (end, 2, rank, place)]
                if rank == caller:
                    events.append((arrive + FORMS, 1, rank, place))
            elif row[0] == "evaluate" and rank == 0:
                events.append((row[1]["begin"] - starts[rank], 3, rank, place))
    for time, kind, rank, place in sorted(events):
        if kind == 0:
            made.pending[rank].append(made.version[rank])
        elif kind == 1:
            made.form()
        elif kind == 2:
            made.apply(rank, place)
        else:
            made.pause(time, place)
    made.pause(max(time for time, *_ in events) + FORMS, len(rows[0]))
    for place, found in sorted(made.rows_before.items(), reverse=True):
        rows[0][place:place] = [("round", row) for row in found]


class _Rounds:
    """What is pending, what each replica has applied, and the rows of rank 0 by the place they go to."""

    def __init__(self, rows: Rows, starts: Sequence[float]) -> None:
        self.rows, self.starts = rows, starts
        self.version = [0] * len(rows)
        self.pending: list[list[int]] = [[] for _ in rows]
        self.taken: list[dict[int, list[tuple[int, int]]]] = []
        """What each round took in."""
        self.rows_before: dict[int, list[dict[str, Any]]] = {}

    @property
    def updates(self) -> int:
        return sum(map(bool, self.taken))

    def form(self) -> None:
        number = len(self.taken) + 1
        found: dict[int, list[tuple[int, int]]] = {}
        for rank, versions in enumerate(self.pending):
            if versions:
                found[rank] = [(number - 1 - one, versions.count(one)) for one in sorted(set(versions))]
                versions.clear()
        self.taken.append(found)

    def apply(self, rank: int, place: int) -> None:
        """At the end of a step: every round that is there."""
        step = self.rows[rank][place]
        assert isinstance(step, Step)
        new = self.taken[self.version[rank] :]
        step.round = self.updates
        step.contributors = len(new[-1]) if new else 1
        step.staleness = max((age for one in new for age, _ in one.get(rank, ())), default=0)
        self._told(rank, place, step.end - 0.0012)
        self.version[rank] = len(self.taken)

    def pause(self, time: float, place: int) -> None:
        self.form()
        self._told(0, place, time + self.starts[0])
        self.version = [len(self.taken)] * len(self.version)

    def _told(self, rank: int, place: int, time: float) -> None:
        if rank != 0:
            return
        for number in range(self.version[0] + 1, len(self.taken) + 1):
            given = self.taken[number - 1]
            weight = float(sum(count for own in given.values() for _, count in own))
            contributors = {str(rank): own for rank, own in given.items()}
            row = {"number": number, "time": time, "weight": weight, "live": len(self.version)}
            self.rows_before.setdefault(place, []).append({**row, "contributors": contributors})
