"""Stale synchronous parallel: workers run ahead of the slowest by at most a few steps.

Idea: The strategy `parameter-server` with `mode="bounded"`: a worker that is more than `max_staleness` steps ahead
waits before it reads parameters until the slowest worker has caught up. The parameters include all gradients older than
the bound, the worker's own, and those newer ones that have arrived.

Cost: As `parameter-server`; plus the waiting at the bound.

When it loses: If one worker is always slower than the bound allows: all wait for it, only later. With bound 0 it is
synchronous.

Honesty:
- pause: goes on; at the bound the others wait for it
- slow worker: goes on; the others run ahead of it as far as the bound allows, and then wait

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
    """A parameter server with bounded staleness: workers are at most a few steps ahead of the slowest."""

    mode: Literal["sync", "bounded", "async"] = "bounded"
