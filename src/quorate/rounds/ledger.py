"""What became of a worker's contributions: nothing is lost uncounted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ledger:
    """Weights of contributions by what became of them."""

    produced: float = 0.0
    taken: float = 0.0
    dropped: float = 0.0
    replaced: float = 0.0
    expired: float = 0.0

    @property
    def lost(self) -> float:
        """Produced, and taken by no round."""
        return self.dropped + self.replaced + self.expired
