"""Records of deaths and newcomers."""

from __future__ import annotations

from collections.abc import Callable, Collection

from quorate.core.contracts import Wire
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.step_times import StepTimer
from quorate.records.rows import Gone, Joined
from quorate.wire.members import read_deaths


class Losses(StepObserver):
    """Records, on the first living worker, the workers that have died since the step before, and newcomers.

    The others hold these rows, and write them if those before them die: readers take the earliest row of each.
    """

    phase = Phase.RECORD

    def __init__(self, wire: Wire, timer: StepTimer, version: Callable[[], int]) -> None:
        """`version` returns the number of updates that this worker has applied."""
        self.optimizer = timer.name
        self._wire, self._timer, self._version = wire, timer, version
        self._recorded: set[int] = set()
        self._joined: set[int] = set()
        self._held: list[Gone | Joined] = []

    @property
    def is_first(self) -> bool:
        """Whether this worker is the first living one."""
        wire = self._wire
        return wire.rank == 0 or (bool(wire.dead) and wire.rank == wire.alive[0])

    @property
    def version(self) -> int:
        """The number of updates that this worker has applied."""
        return self._version()

    def step_ended(self) -> None:
        self.look()

    def look(self) -> None:
        """Read deaths; call it between two rounds."""
        wire = self._wire
        if len(wire.dead) == len(self._recorded):
            return
        for death in read_deaths(wire.board):
            if death.rank in self._recorded or death.rank not in wire.dead:
                continue
            self._recorded.add(death.rank)
            self._held.append(
                Gone(
                    time=self._timer.clock.now(),
                    rank=death.rank,
                    host=death.host,
                    reason=death.reason,
                    round=self._version(),
                    generation=len(self._recorded),
                    left=len(wire.alive) + len(wire.dead) - len(self._recorded),
                )
            )
        self._write()

    def joined(self, ranks: Collection[int], number: int) -> None:
        """Note the newcomers of a round that this worker applies; they step from it on. `ranks` are all so far."""
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
