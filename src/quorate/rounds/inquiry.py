"""What one that is about to lead asks all others: where they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from quorate.rounds.hosts.votes import knows


@dataclass
class Inquiry:
    """One that is under way."""

    until: float
    """Answers are waited for."""
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The answers, by rank."""
    early: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Notes that came meanwhile: (rank, header)."""

    def heard(self, rank: int, header: dict[str, Any]) -> None:
        """`rank` answers, or says what it does."""
        if header["kind"] == "state":
            self.states[rank] = header
        elif header["kind"] == "note":
            self.early.append((rank, header))

    def have_died(self, ranks: Iterable[int]) -> None:
        """What they have answered counts no more."""
        for rank in ranks:
            self.states.pop(rank, None)

    def newest(self) -> tuple[int, int]:
        """Who knows most, and the newest round that any has seen start."""
        rank = max(self.states, key=lambda rank: knows(self.states[rank]))
        return rank, max(one["started"] for one in self.states.values())

    def holders(self, number: int, term: int) -> list[int]:
        """Who holds round `number`, as it was formed in that term."""
        found = ((rank, state["held"]) for rank, state in self.states.items())
        return [rank for rank, held in found if held is not None and held[:2] == [number, term]]

    def is_enough(self, everyone: Collection[int], dead: Collection[int], voters: Collection[int]) -> bool:
        """Whether one of those that have answered has every round that is in force; `voters` are those on the round
        after the newest of these (none: all that are inside)."""
        if self.states.keys() >= set(everyone).difference(dead):
            return True
        known = voters or everyone
        return 2 * len(self.states.keys() & set(known)) > len(known)


def goes_on(note: dict[str, Any], number: int, stretch: int, *, is_in: bool) -> dict[str, Any]:
    """What a worker does, as new leaders hear, from round `number` on: it steps if all had settled in that, or it has
    joined by then (`is_in`); else what its `note` says."""
    settled = note["note"] == "settle" and number == stretch
    return {"note": "ride", "computing": number} if settled or (note["note"] in ("copy", "enter") and is_in) else note
