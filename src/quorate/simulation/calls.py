"""`rounds.calls.Calls` for very many workers that all step: checked only where a round may start."""

from __future__ import annotations

from quorate.rounds.calls import Calls
from quorate.rounds.terms import Agreed


class CountedCalls(Calls):
    """`Calls` with counts of callers and of rounds in computation, so that a negative answer costs little.

    It is for workers that step from the beginning to the end: only `called`, `rode`, `begin` and `completed` may be
    called. Cost of `may_start`: that of `Calls`, which goes through all workers, once a round, and otherwise a few
    comparisons.
    """

    def __init__(self, agreed: Agreed, started: int = 0) -> None:
        super().__init__(agreed, started)
        self._computing = {0: agreed.size}
        """Workers by the round whose parameters they compute on."""
        self._everyone = list(range(agreed.size))
        self._drawn: tuple[int, int] | None = None
        """The number of a round, and the rank drawn to start it."""

    def called(self, rank: int, since: int, computing: int | None = None, slack: float | None = None) -> None:
        """See `Calls`."""
        self._moves(self.workers[rank].computing, computing)
        super().called(rank, since, computing, slack)

    def rode(self, rank: int, computing: int) -> None:
        """See `Calls`."""
        self._moves(self.workers[rank].computing, computing)
        super().rode(rank, computing)

    def completed(self, number: int) -> None:
        super().completed(number)
        counts: dict[int, int] = {}
        for worker in self.workers:
            if worker.computing is not None:
                counts[worker.computing] = counts.get(worker.computing, 0) + 1
        self._computing = counts

    def may_start(self) -> bool:
        """See `Calls`."""
        return self._may_be() and super().may_start()

    def _moves(self, before: int | None, after: int | None) -> None:
        if before is not None:
            left = self._computing[before] - 1
            if left:
                self._computing[before] = left
            else:
                del self._computing[before]
        if after is not None:
            self._computing[after] = self._computing.get(after, 0) + 1

    def _may_be(self) -> bool:
        agreed = self.agreed
        if len(self.callers) < self.quorum:
            return False
        oldest = self.started + 1 - agreed.max_staleness
        if any(number < oldest for number in self._computing):
            return False
        if agreed.wait_for != "designated" or len(self.callers) == agreed.size:
            return True
        return self.drawn in self.callers

    @property
    def drawn(self) -> int:
        """The rank that starts the next round, where it is drawn."""
        if self._drawn is None or self._drawn[0] != self.started + 1:
            self._drawn = self.started + 1, self._initiator(self._everyone)
        return self._drawn[1]
