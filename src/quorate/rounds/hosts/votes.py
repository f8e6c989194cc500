"""Between hosts a round is in force when a majority has it, and nobody applies it before; pure.

On one host a leader that falls silent has formed one round too many at most. Between hosts it may only be cut off, and
would go on by itself. So there the leader proposes what it has formed, everyone *holds* it and says so (`got`), and
when a majority has, the leader says that the round is in force (`force`). That is one decree after the other, as in
Paxos (Lamport, 1998): the term in which a member has last been told to hold a round is its ballot.

Who votes on a round was said in the one before it (`Round.voters`): those that were inside, and not away. In force is
what more than half of those that live of them hold, or half with the lowest rank among them. Who is about to lead needs
the answers of all living, or of more than half of the voters, the dead counted: one of these then knows of every round
that is in force, and of all that are held the one with the newest ballot is proposed anew. Cost: 2 (P - 1) headers and
a round trip for each round, and P of them held at once instead of applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from quorate.rounds.calls import Calls
from quorate.rounds.forming import are_apart
from quorate.rounds.log import Log, Round


def is_majority(ranks: Collection[int], of: Collection[int]) -> bool:
    """More than half of these, or half with the lowest one."""
    found = set(ranks).intersection(of)
    return 2 * len(found) > len(of) or (2 * len(found) == len(of) and min(of) in found)


class Held:
    """What a member holds, which may be in force."""

    def __init__(self) -> None:
        self.round: Round | None = None
        self.acknowledged = 0
        """As `Log.trim` takes it."""
        self.ballot = -1
        """The term of the leader that has told to hold it."""

    def take(self, one: Round, acknowledged: int, ballot: int) -> None:
        """Hold this one, instead of what was held."""
        self.round, self.acknowledged, self.ballot = one, acknowledged, ballot

    def logged(self, number: int) -> None:
        """Rounds up to that one are in force."""
        if self.round is not None and self.round.number <= number:
            self.round, self.ballot = None, -1

    def after(self, newest: int) -> Round | None:
        """What is held behind that round."""
        return self.round if self.round is not None and self.round.number == newest + 1 else None

    def is_of(self, number: int, ballot: int) -> bool:
        """Whether this round is held, as its leader has told."""
        return self.round is not None and (self.round.number, self.ballot) == (number, ballot)

    @property
    def about(self) -> list[int] | None:
        """What a leader is told: the round's number, the term it was formed in, and the ballot."""
        return None if self.round is None else [self.round.number, self.round.term, self.ballot]


def knows(state: dict[str, Any]) -> tuple[int, int, int]:
    """How much a member knows that says so: its newest round, its term and number (what a later leader has formed is
    newer, whatever its number), then the ballot of what it holds behind that."""
    held = state.get("held")
    ballot = held[2] if held is not None and held[0] == state["logged"] + 1 else -1
    return state["log_term"], state["logged"], ballot


class Votes:
    """On the newest round that leader `rank` has formed."""

    def __init__(self, log: Log, calls: Calls, host_of: Callable[[int], int]) -> None:
        self._log, self._calls, self._host_of = log, calls, host_of
        self.on: Round | None = None
        """What is voted on."""
        self.acknowledged = 0
        self._have: set[int] = set()
        self._least = 0
        """Twice as many have it at least once it is in force."""

    @property
    def are_needed(self) -> bool:
        """Whether rounds are proposed."""
        return are_apart(self._host_of, self._calls.inside)

    @property
    def voters(self) -> list[int]:
        """Who votes on the round after the newest, and has not died."""
        inside = set(self._calls.inside)
        return [rank for rank in self._log.voters or inside if rank in inside] or sorted(inside)

    def of_next(self, entering: Iterable[int]) -> list[int]:
        """Who is to vote on the round after the one that is formed now, with those `entering` in it."""
        if not self.are_needed:
            return []
        there = [rank for rank in self._calls.inside if self._calls.workers[rank].activity != "away"]
        return sorted({*there, *entering})

    def begin(self, formed: Round, acknowledged: int) -> None:
        """This round is proposed."""
        self.on, self.acknowledged, self._have = formed, acknowledged, set()
        self._least = len(self.voters)

    def have_died(self) -> None:
        """Some of those that vote."""
        self._least = len(self.voters)

    def came(self, rank: int, number: int) -> None:
        """`rank` holds round `number`."""
        if self.on is not None and self.on.number == number:
            self._have.add(rank)

    def ended(self) -> Round | None:
        """What is in force by now; once."""
        one = self.on
        if one is None or 2 * len(self._have) < self._least or not is_majority(self._have, self.voters):
            return None
        self.on = None
        return one
