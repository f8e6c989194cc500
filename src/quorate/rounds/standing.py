"""Where one worker stands in its rounds, for learners of several workers, which apply the same rounds in each step."""

from __future__ import annotations

from collections.abc import Callable

from quorate.core.contracts import Work
from quorate.rounds.arrival import Arrival
from quorate.rounds.fragments import PendingFragments
from quorate.rounds.progress import RoundTask


class Standing:
    """Implements `core.means.Standing`; `call` calls for a round."""

    def __init__(
        self, task: RoundTask, arrival: Arrival, handed: PendingFragments | None, call: Callable[[], Work[int]]
    ) -> None:
        self._task, self._arrival, self._handed, self._call = task, arrival, handed, call

    @property
    def version(self) -> int:
        return self._task.applied

    @property
    def newest(self) -> int:
        return self._task.member.log.newest

    @property
    def holds(self) -> int:
        with self._task.lock:
            return 0 if self._handed is None else self._handed.holds

    @property
    def missing(self) -> frozenset[int]:
        one = self._task.member.log.get(self.version)
        return frozenset() if one is None else frozenset(one.missing)

    def until(self, number: int) -> None:
        self._arrival.until(number, is_called_for=False)

    def call(self) -> None:
        self._call().wait()

    def withdraw(self) -> None:
        if self._handed is not None:
            with self._task.lock:
                self._handed.withdraw()
