"""Who has died and who has joined, told to the records."""

from __future__ import annotations

from collections.abc import Callable, Collection

from quorate.core.contracts import Wire
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.step_times import StepTimer
from quorate.records.rows import Gone, Joined
from quorate.wire.failure import read_deaths


class Losses(StepObserver):
    """Tell the records, on the first worker that is left, who has died since the step before and who has joined.

    The others hold these rows, and write them where those before them die: whoever reads takes the earliest of each.
    """

    phase = Phase.RECORD

    def __init__(self, wire: Wire, timer: StepTimer, version: Callable[[], int]) -> None:
        """`version` counts the updates that this worker has applied."""
        self.optimizer = timer.name
        self._wire, self._timer, self._version = wire, timer, version
        self._told: set[int] = set()
        self._joined: set[int] = set()
        self._held: list[Gone | Joined] = []

    @property
    def is_first(self) -> bool:
        """Whether this worker is the first that is left."""
        wire = self._wire
        return wire.rank == 0 or (bool(wire.dead) and wire.rank == wire.alive[0])

    @property
    def version(self) -> int:
        """How many updates this worker has applied."""
        return self._version()

    def step_ended(self) -> None:
        self.look()

    def look(self) -> None:
        """Called now and then, between two rounds."""
        wire = self._wire
        if len(wire.dead) == len(self._told):
            return
        for one in read_deaths(wire.board):
            if one.rank in self._told or one.rank not in wire.dead:
                continue
            self._told.add(one.rank)
            self._held.append(
                Gone(
                    time=self._timer.clock.now(),
                    rank=one.rank,
                    host=one.host,
                    reason=one.reason,
                    round=self._version(),
                    generation=len(self._told),
                    left=len(wire.alive) + len(wire.dead) - len(self._told),
                )
            )
        self._write()

    def joined(self, ranks: Collection[int], number: int) -> None:
        """Called with every round that this worker applies, and all that have joined by then: they step from it on."""
        wire = self._wire
        new = sorted(set(ranks) - self._joined)
        if not new:
            return
        live = len({*range(wire.size), *ranks} - wire.dead)
        now = self._timer.clock.now()
        self._held += [Joined(time=now, rank=rank, round=number, live=live) for rank in new]
        self._joined.update(new)
        self._write()

    def _write(self) -> None:
        recorder = self._timer.recorder
        if not self.is_first:
            return
        held, self._held = self._held, []
        if recorder is not None:
            for row in held:
                recorder.write(row)
