"""Stale synchronous parallel: workers run ahead of the slowest by at most a few steps.

Idea: The strategy `parameter-server` with `mode="bounded"`: a worker that is more than `max_staleness` steps ahead
waits before it reads parameters until the slowest worker has caught up. The parameters include all gradients older than
the bound, the worker's own, and those newer ones that have arrived.

Cost: As `parameter-server`; plus the waiting at the bound.

When it loses: If one worker is always slower than the bound allows: all wait for it, only later. With bound 0 it is
synchronous.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; if it was a server, this needs
  `replication=2`
- pause: goes on; at the bound the others wait for it
- slow worker: goes on; the others run ahead of it as far as the bound allows, and then wait
- corrupt gradient: goes on; a gradient with NaN or infinity is reported, skipped, or ends the training
  (`on_nonfinite`); any other one is in the parameters of all workers immediately
- resize: goes on; parameters and optimizer state are divided again
- resume: goes on; the servers keep their state, and every clock starts at zero

Paper: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Gradients are steps of the user's optimizer here, not additions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.parameter_server import ParameterServer


@register("ssp")
@dataclass(frozen=True, kw_only=True)
class SSP(ParameterServer):
    """Workers run ahead of the slowest by at most a few steps."""

    mode: Literal["sync", "bounded", "async"] = "bounded"
    """As of `parameter-server`."""
