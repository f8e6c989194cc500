"""Learners of several workers each, as rounds see them: one of each hands in, and a learner counts once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # calls are simulated without torch, too
    from quorate.rounds.gathering import Contribution


@dataclass(frozen=True)
class Learners:
    """Which learner each worker is of, by rank; empty where each is one of its own."""

    of: Sequence[int] = ()

    def among(self, ranks: Iterable[int]) -> set[int]:
        """Those that these workers are of."""
        return {self.of[rank] for rank in ranks} if self.of else set(ranks)

    def mates(self, rank: int) -> frozenset[int]:
        """The other workers of its learner."""
        return frozenset(r for r, of in enumerate(self.of) if of == self.of[rank]) - {rank} if self.of else frozenset()

    def whole(self, present: Sequence[int], absent: Iterable[int]) -> list[int]:
        """Those of the `present` none of whose mates is `absent`: a learner goes on with all of its workers only."""
        stuck = self.among(absent) if self.of else set[int]()
        return [rank for rank in present if self.of[rank] not in stuck] if stuck else list(present)

    def one_of_each(self, given: Mapping[int, Contribution]) -> dict[int, Contribution]:
        """What was given to a round, in order of rank, at most one contribution of each learner.

        Where several of its workers gave, each has handed in all that the learner had done by then, and who has the
        highest rank did so last.
        """
        found = dict(sorted(given.items()))
        newest = {self.of[rank]: rank for rank, one in found.items() if one.vector is not None} if self.of else {}
        for rank, one in found.items() if newest else ():
            if one.vector is not None and newest[self.of[rank]] != rank:
                found[rank] = replace(one, vector=None, weight=0.0, used_up=0.0, stalenesses=[], measures=[])
        return found
