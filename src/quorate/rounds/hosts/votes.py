"""Between hosts a round is in force when a majority has it, and nobody applies it before; pure.

On one host a leader that falls silent has formed one round too many at most. Between hosts it may only be cut off, and
would go on by itself. So there the leader proposes each round, everyone *holds* it and says so (`got`), and when a
majority has, the leader says that the round is in force (`force`). That is one decree after the other, as in Paxos
(Lamport, 1998): the term in which a member was last told to hold a round is its ballot.

The voters on a round were named in the one before it (`Round.voters`): all that were inside, and not away. A round is
in force when more than half of the living voters hold it, or half with the lowest rank among them. A candidate needs
the answers of all living, or of more than half of the voters, the dead counted. One of these knows of every round that
is in force; of all held rounds the one with the newest ballot is proposed again. Cost: 2 (P - 1) headers and a round
trip for each round, and P of them held at once instead of applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from quorate.rounds.calls import Calls
from quorate.rounds.forming import are_apart
from quorate.rounds.log import Log, Round


def is_majority(ranks: Collection[int], of: Collection[int]) -> bool:
    """Return whether `ranks` are more than half of `of`, or half with the lowest one."""
    voters = set(ranks).intersection(of)
    return 2 * len(voters) > len(of) or (2 * len(voters) == len(of) and min(of) in voters)


class Votes:
    """The votes on the newest round that a leader has formed."""

    def __init__(self, log: Log, calls: Calls, host_of: Callable[[int], int]) -> None:
        self._log, self._calls, self._host_of = log, calls, host_of
        self.on: Round | None = None
        self.acknowledged = 0
        self._have: set[int] = set()
        self._least = 0  # twice as many hold it at least once it is in force

    @property
    def are_needed(self) -> bool:
        """Whether rounds are proposed, and take effect by votes."""
        return are_apart(self._host_of, self._calls.inside)

    @property
    def voters(self) -> list[int]:
        """The voters on the round after the newest that have not died."""
        inside = set(self._calls.inside)
        return [rank for rank in self._log.voters or inside if rank in inside] or sorted(inside)

    def of_next(self, entering: Iterable[int]) -> list[int]:
        """Return the voters on the round after the one that is formed now, with the newcomers `entering` in it."""
        if not self.are_needed:
            return []
        there = [rank for rank in self._calls.inside if self._calls.workers[rank].activity != "away"]
        return sorted({*there, *entering})

    def begin(self, formed: Round, acknowledged: int) -> None:
        """Propose a round."""
        self.on, self.acknowledged, self._have = formed, acknowledged, set()
        self._least = len(self.voters)

    def have_died(self) -> None:
        """Note that workers have died."""
        self._least = len(self.voters)

    def holds(self, rank: int, number: int) -> None:
        if self.on is not None and self.on.number == number:
            self._have.add(rank)

    def ended(self) -> Round | None:
        proposed = self.on
        if proposed is None or 2 * len(self._have) < self._least or not is_majority(self._have, self.voters):
            return None
        self.on = None
        return proposed
