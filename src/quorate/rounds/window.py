"""How long a round that may start waits for more workers to call; pure.

As long as nobody is kept from anything by it: a worker that has called goes on for some seconds without the result
(its slack), and what is left of them, after the time that it took until enough had called, and that an exchange takes,
is for others. From the adaptive grace window of Decoupled DiLoCo (Douillard et al., 2026, after public descriptions):
gamma (overlap x step time - time to the quorum - time of an exchange), between 0 and a cap.

Where workers wait for results and hosts form the sum among themselves, a round waits for a twentieth of the time of an
exchange: whoever misses it by less would cost another exchange, over the same links. Where nobody came in a window, the
next rounds have none: one of them at first, twice as many after each further window in which nobody came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

GAMMA = 0.8
"""The share of what is left that is waited; a step may be shorter than the ones before it."""

SHARE = 0.05
"""Of the time of an exchange among hosts, that is waited."""
_MOST_WITHOUT = 32
"""Rounds without a window, after one in which nobody came."""


@dataclass
class Window:
    """That of the next round, as its leader knows it. All in seconds."""

    cap: float
    """It is never longer; and so long where nobody has told its slack."""
    exchange: float = 0.0
    """What the newest exchange took."""
    among_hosts: float = 0.0
    """What it took where hosts formed the sum among themselves, else 0."""
    until: float = math.inf
    """When it is over, once enough have called."""
    used: float = 0.0
    """How long the newest round has waited in it."""
    _since: float | None = None
    """When enough had called."""
    _first: float | None = None
    """When the first worker called."""
    _slacks: list[float] = field(default_factory=list)
    _calls: int = 0
    _opened_at: int | None = None
    """How many had called when a window for the others of several hosts began."""
    _without: int = 0
    """How many of the next rounds have no such window."""
    _doubled: int = 1
    """How many have none after the next window in which nobody comes."""

    def called(self, slack: float | None, now: float) -> None:
        """A worker has, and can go on for `slack` without the result (None: nobody knows)."""
        self._first = now if self._first is None else self._first
        self._calls += 1
        if slack is not None:
            self._slacks.append(slack)

    def took(self, seconds: float, *, among_hosts: bool) -> None:
        """The newest exchange is over."""
        self.exchange, self.among_hosts = seconds, seconds if among_hosts else 0.0

    def is_over(self, now: float) -> bool:
        """Enough workers have called; whether it is over."""
        self._since = now if self._since is None else self._since
        if self.until == math.inf and self._first is not None:
            if self.cap > 0:
                left = min(self._slacks, default=math.inf) - (now - self._first) - self.exchange
                self.until = now + min(self.cap, max(0.0, GAMMA * left))
            elif self.among_hosts > 0 and not self._without and not self._slacks:
                self.until, self._opened_at = now + SHARE * self.among_hosts, self._calls
        return now >= self.until if self.cap or self.until < math.inf else True

    def closed(self, now: float) -> None:
        """The round starts."""
        has_one = self.cap or self._opened_at is not None
        self.used = max(0.0, now - self._since) if has_one and self._since is not None else 0.0
        if self._opened_at is None:
            self._without = max(0, self._without - 1)
        elif self._calls > self._opened_at:
            self._doubled = 1
        else:
            self._without, self._doubled = self._doubled, min(2 * self._doubled, _MOST_WITHOUT)
        self.until, self._first, self._since, self._slacks = math.inf, None, None, []
        self._calls, self._opened_at = 0, None
