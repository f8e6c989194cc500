"""How long a round that may start waits for more workers to call; pure.

As long as nobody is kept from anything by it: a worker that has called goes on for some seconds without the result
(its slack), and what is left of them, after the time that it took until enough had called, and that an exchange takes,
is for others. From the adaptive grace window of Decoupled DiLoCo (Douillard et al., 2026, after public descriptions):
gamma (overlap x step time - time to the quorum - time of an exchange), between 0 and a cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

GAMMA = 0.8
"""The share of what is left that is waited; a step may be shorter than the ones before it."""


@dataclass
class Window:
    """That of the next round, as its leader knows it. All in seconds."""

    cap: float
    """It is never longer; and so long where nobody has told its slack."""
    exchange: float = 0.0
    """What the newest exchange took."""
    until: float = math.inf
    """When it is over, once enough have called."""
    used: float = 0.0
    """How long the newest round has waited in it."""
    _since: float | None = None
    """When enough had called."""
    _first: float | None = None
    """When the first worker called."""
    _slacks: list[float] = field(default_factory=list)

    def called(self, slack: float | None, now: float) -> None:
        """A worker has, and can go on for `slack` without the result (None: nobody knows)."""
        self._first = now if self._first is None else self._first
        if slack is not None:
            self._slacks.append(slack)

    def is_over(self, now: float) -> bool:
        """Enough workers have called; whether it is over."""
        self._since = now if self._since is None else self._since
        if self.cap > 0 and self._first is not None and self.until == math.inf:
            left = min(self._slacks, default=math.inf) - (now - self._first) - self.exchange
            self.until = now + min(self.cap, max(0.0, GAMMA * left))
        return not self.cap or now >= self.until

    def closed(self, now: float) -> None:
        """The round starts."""
        self.used = 0.0 if self._since is None or not self.cap else max(0.0, now - self._since)
        self.until, self._first, self._since, self._slacks = math.inf, None, None, []
