"""After which silences what is done between hosts; all follow from one setting."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError

LEAST, MOST = 0.5, 3600.0


@dataclass(frozen=True)
class Limits:
    """`silence`: seconds after which who is not heard is taken for dead, and who hears no majority ends."""

    silence: float = 5.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.silence) and LEAST <= self.silence <= MOST):
            raise ConfigurationError(
                f"the silence after which a worker is taken for dead is from {LEAST:g} to {MOST:g} seconds, not "
                f"{self.silence!r}"
            )

    @property
    def beat(self) -> float:
        """Between two words of the leader to each; two of them pass before anybody stands."""
        return self.silence / 7.5

    @property
    def stand_after(self) -> float:
        """Without a word of the leader, a worker stands for election."""
        return 0.3 * self.silence

    @property
    def yields_after(self) -> float:
        """Without an answer of a majority, a leader leads no more."""
        return 0.5 * self.silence

    @property
    def spread(self) -> float:
        """By which workers differ in that, so that they do not all stand at once."""
        return self.silence / 10

    @property
    def back_within(self) -> float:
        """In which a connection that was closed is there again, unless the process has ended."""
        return min(0.2, self.beat)
