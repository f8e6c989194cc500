"""The masses that workers of a push-sum send and receive, and the mass that is lost with the dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from quorate.core.neighbours import Given


def mass_of(contribution: Given) -> float:
    """Return its weight times the first of its scalars: under push-sum, the weight that has come with it."""
    return contribution.weight * (contribution.scalars[0] if contribution.scalars else 1.0)


@dataclass
class MassLedger:
    """The masses that one worker has sent and received since the newest pause of all, by rank of the other worker."""

    sent: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    received: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    lost: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Sent to this worker, and lost on the way."""

    def balances(self) -> dict[int, float]:
        """Return the mass sent to each of the others, less the mass received from it."""
        return {rank: self.sent[rank] - self.received[rank] for rank in sorted({*self.sent, *self.received})}


def weight_of_the_dead(
    dead: Collection[int], began: Mapping[int, float], balances: Iterable[Mapping[int, float]]
) -> float:
    """Return the mass that was lost with the `dead`: theirs, and the mass in flight from them and to them.

    `began` holds the masses when all rested last (1 each, at the beginning), `balances` those of survivors' ledgers.
    All masses together: this, what survivors hold, and what is under way or lost among them.
    """
    held = sum(began[rank] for rank in dead)
    return held + sum(balance.get(rank, 0.0) for balance in balances for rank in dead)
