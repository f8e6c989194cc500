"""The outcome of one sum: the workers whose vectors counted, and those whose did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quorate.records.rows import ABSURD, FAR, NO_WEIGHT, NOT_FINITE, OUTVOTED


@dataclass(frozen=True)
class Outcome:
    """The outcome of one sum that a rule or a code has formed."""

    absent: Sequence[int] = ()
    """Ranks that had no gradient."""
    not_finite: Sequence[int] = ()
    outvoted: Sequence[int] = ()
    """Ranks whose vector differs from most of their group, or from what their code allows."""
    far: Sequence[int] = ()
    """Ranks that are several times as far from the others as these are from each other."""
    absurd: Sequence[int] = ()
    """Ranks that are out of all proportion to their peers."""
    is_told: bool = False
    """Whether these vectors count nevertheless, and are only reported."""
    weights: Sequence[float] = field(default=())
    """Mean weight of the vector of each rank among the vectors that the rule combines."""

    @property
    def excluded(self) -> Iterator[tuple[int, str]]:
        """Yield each rank whose gradient did not count, or hardly, once, with the reason."""
        why = dict.fromkeys(self.not_finite, NOT_FINITE) | dict.fromkeys(self.outvoted, OUTVOTED)
        why |= dict.fromkeys(self.absurd, ABSURD)
        for rank, weight in enumerate(self.weights):
            if rank not in why and rank not in self.absent and weight == 0:
                why[rank] = NO_WEIGHT
        for rank in self.far:
            why.setdefault(rank, FAR)
        yield from sorted(why.items())
