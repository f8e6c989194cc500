"""Bounded staleness: the fast run ahead of the slowest by at most a few rounds.

Idea: The strategy `quorum` with `wait_for` 1 and a small `max_staleness`: at the bound the next round waits for the
worker that is behind, if it is alive and computing.

Cost: As `quorum`; plus the waiting at the bound.

When it loses: When one worker is always slower than the bound allows, everyone waits for it, only later.

Honesty:
- worker death: goes on; within a second the others form rounds without it, with equal replicas; gradients it had not
  sent are lost; with `on_death="stop"` all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; goes its own way until it is `max_staleness` rounds behind, then everyone waits for it
- corrupt gradient: goes on; a gradient with NaN or infinity is reported with its worker, or ends the training
  (`on_nonfinite`); any other one is added like a correct one
- resize: goes on; pending gradients of the old workers are distributed over the new ones, and so is the rest of the
  epoch
- resume: goes on; pending gradients stay pending, and every gradient counts once

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
    """As of `quorum`."""
    max_staleness: int = 4
    """As of `quorum`."""
