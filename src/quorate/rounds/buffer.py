"""What the protocol of rounds asks of a worker's buffer: `pending.PendingGradients`, or `fragments.PendingFragments`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from quorate.rounds.ledger import Ledger

if TYPE_CHECKING:
    from quorate.rounds.pending import Kept, Snapshot


class Buffer(Protocol):
    """What a worker has produced, and no round has taken in for good. Whoever shares it between threads locks."""

    ledger: Ledger
    step: float
    options: Any

    def take(self, number: int, *, settles: bool = False) -> Snapshot:
        """All that round `number` may have; what is too old for it is counted and gone."""

    def give_back(self, snapshot: Snapshot) -> None:
        """The round went by without it: it waits again."""

    def lose(self, weight: float) -> None:
        """So much was taken by a round that came to nothing, and is not kept any more."""

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        """What rounds up to `number` have not taken in."""

    def restore(self, kept: Kept) -> None:
        """Go on from there."""
