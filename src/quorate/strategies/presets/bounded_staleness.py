"""Bounded staleness: the fast run ahead of the slowest by at most a few rounds.

Idea: The strategy `quorum` with `wait_for` 1 and a small `max_staleness`: at the bound the next round waits for the
worker that is behind, if it is alive and computing.

Cost: As `quorum`; plus the waiting at the bound.

When it loses: When one worker is always slower than the bound allows, everyone waits for it, only later.

Honesty:
- slow worker: goes on; it runs freely until it is `max_staleness` rounds behind, then all workers wait for it

Paper: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013 (the
bound; there on a server's parameters, here on ordered rounds).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.quorum import Quorum


@register("bounded-staleness")
@dataclass(frozen=True, kw_only=True)
class BoundedStaleness(Quorum):
    """Fast workers run ahead of the slowest by at most a few rounds."""

    wait_for: int | float | Literal["all", "majority", "designated"] = 1
    max_staleness: int = 4
