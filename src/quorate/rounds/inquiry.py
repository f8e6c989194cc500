"""The inquiry of a member that is about to lead: which rounds the others have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from quorate.core.fields import Header
from quorate.core.members import Members
from quorate.rounds.leader import Leader
from quorate.rounds.log import Round
from quorate.rounds.messages import Envelope, Note, State


def knows(envelope: Envelope, held: Sequence[int] | None) -> tuple[int, int, int]:
    """Return the order of members by knowledge: the term and the number of the newest round, then the ballot held. A
    round of a later leader is newer, whatever its number. `held`: see `Held.about`."""
    ballot = held[2] if held is not None and held[0] == envelope.logged + 1 else -1
    return envelope.log_term, envelope.logged, ballot


@dataclass
class Inquiry:
    """The inquiry of a member that is about to lead."""

    until: float
    states: dict[int, tuple[Envelope, State]] = field(default_factory=dict)
    early: list[tuple[int, Envelope, Note]] = field(default_factory=list)

    def heard(self, rank: int, envelope: Envelope, header: Header) -> None:
        """Take in a message: an answer, or a note for the leader that this member becomes."""
        if header["kind"] == "state":
            self.states[rank] = envelope, State.read(header)
        elif header["kind"] == "note":
            self.early.append((rank, envelope, Note.read(header)))

    def have_died(self, ranks: Iterable[int]) -> None:
        """Forget the answers of workers that have died."""
        for rank in ranks:
            self.states.pop(rank, None)

    def newest(self) -> tuple[int, int]:
        """Return the worker that knows most, and the newest round that any worker has seen start."""
        rank = max(self.states, key=lambda rank: knows(*self.knowledge(rank)))
        return rank, max(state.started for _, state in self.states.values())

    def knowledge(self, rank: int) -> tuple[Envelope, Sequence[int] | None]:
        """Return the arguments of `knows` for a worker that has answered."""
        envelope, state = self.states[rank]
        return envelope, state.held

    def holders(self, number: int, term: int) -> list[int]:
        """Return the workers that hold the round of this number and term."""
        held = {rank: state.held for rank, (_, state) in self.states.items()}
        return [rank for rank, about in held.items() if about is not None and list(about[:2]) == [number, term]]

    def is_enough(self, members: Members, voters: Collection[int]) -> bool:
        """Return whether one that answered must have every round in force; without `voters` all inside vote."""
        if self.states.keys() >= set(members.alive):
            return True
        known = voters or members.everyone
        return 2 * len(self.states.keys() & set(known)) > len(known)


def begin_to_lead(leader: Leader, inquiry: Inquiry, held: Round | None, dead: Collection[int], now: float) -> None:
    """Begin to lead the members that have answered, and propose the `held` round; the `dead` are known."""
    leader.are_absent(set(leader.agreed.ranks) - inquiry.states.keys())
    leader.have_died(dead, now)
    for rank, (envelope, _) in inquiry.states.items():
        leader.holdings.know(rank, envelope)
    for rank, (envelope, state) in inquiry.states.items():
        leader.noted(rank, state.did, envelope, now)
        leader.holdings.bring_up(rank, envelope.logged, envelope.log_term, now)
    for source, envelope, note in [early for early in inquiry.early if early[0] not in dead]:
        leader.heard(source, envelope, now)
        leader.noted(source, note, envelope, now)
    if held is not None:
        leader.proposes(held, inquiry.holders(held.number, held.term), now)
    leader.advance(now)
