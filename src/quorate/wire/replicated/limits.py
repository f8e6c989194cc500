"""Limits of silence between hosts; all follow from one setting."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError

LEAST, MOST = 0.5, 3600.0


@dataclass(frozen=True)
class Limits:
    """`silence`: seconds after which a silent worker is taken for dead, and one that hears no majority ends."""

    silence: float = 5.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.silence) and LEAST <= self.silence <= MOST):
            raise ConfigurationError(
                f"the silence after which a worker is taken for dead is from {LEAST:g} to {MOST:g} seconds, not "
                f"{self.silence!r}"
            )

    @property
    def beat(self) -> float:
        """Seconds between two messages of the leader to each worker; a candidate stands after two of them."""
        return self.silence / 7.5

    @property
    def stand_after(self) -> float:
        """Seconds without a message of the leader after which a worker stands for election."""
        return 0.3 * self.silence

    @property
    def yields_after(self) -> float:
        """Seconds without an answer of a majority after which a leader resigns."""
        return 0.5 * self.silence

    @property
    def spread(self) -> float:
        """Seconds by which `stand_after` differs between workers, so that they do not stand at once."""
        return self.silence / 10

    @property
    def back_within(self) -> float:
        """Seconds within which a closed connection is open again, unless the process has ended."""
        return min(0.2, self.beat)
