"""The ledger of a worker's contributions: nothing is lost uncounted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ledger:
    """Weights of contributions, by their fate."""

    produced: float = 0.0
    taken: float = 0.0
    dropped: float = 0.0
    replaced: float = 0.0
    expired: float = 0.0

    @property
    def lost(self) -> float:
        """The weight that no round has taken and none will."""
        return self.dropped + self.replaced + self.expired
