"""Learners of several workers each: one worker of each contributes, and a learner counts once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # calls are simulated without torch, too
    from quorate.rounds.buffer import Contribution


@dataclass(frozen=True)
class Learners:
    """The learner of each worker, by rank; there are several workers in one."""

    of: Sequence[int]

    def among(self, ranks: Iterable[int]) -> set[int]:
        """Return the learners of these workers."""
        return {self.of[rank] for rank in ranks}

    def mates(self, rank: int) -> frozenset[int]:
        """Return the other workers of the same learner."""
        return frozenset(r for r, of in enumerate(self.of) if of == self.of[rank]) - {rank}

    def whole(self, present: Sequence[int], absent: Iterable[int]) -> list[int]:
        """Return the `present` workers whose learners are complete: none of its workers is `absent`."""
        stuck = self.among(absent)
        return [rank for rank in present if self.of[rank] not in stuck]

    def one_of_each(self, received: Mapping[int, Contribution]) -> dict[int, Contribution]:
        """Return the contributions to a round in order of rank, with one vector at most of each learner: of its workers
        the one of the highest rank contributed last, and each has sent all of the learner's steps by then."""
        contributions = dict(sorted(received.items()))
        newest = {
            self.of[rank]: rank for rank, contribution in contributions.items() if contribution.vector is not None
        }
        for rank, contribution in contributions.items():
            if contribution.vector is not None and newest[self.of[rank]] != rank:
                contributions[rank] = replace(
                    contribution, vector=None, weight=0.0, used_up=0.0, stalenesses=[], measures=[]
                )
        return contributions
