"""eager-SGD, solo: the first worker that has a gradient starts the round.

Idea: The strategy `quorum` with `wait_for` 1. Nobody waits for anybody but for the exchange: the fastest worker
calls, everyone gives what is pending, and those that are late find their gradients added to the next round.

Cost: As `quorum`; in the worst case one fresh gradient in each round.

When it loses: Under severe imbalance: 60.6 % against 69.7 % top-1 for majority in the paper's UCF101 (8 GPUs). For
light imbalance only.

Honesty:
- worker death: goes on; within a second the others form rounds without it, with equal replicas; what it had not given
  is lost; `on_death="stop"` makes all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; its gradients come late and count, within `max_staleness`
- corrupt gradient: goes on; one that is not finite is told with its worker, or ends the training (`on_nonfinite`); any
  other is added like the rest
- resize: goes on; what was pending on the old workers is dealt out to the new ones, and what is left of the epoch too
- resume: goes on; what was pending is pending, and every gradient counts once

Paper: Li, Ben-Nun, Di Girolamo, Alistarh, Hoefler, "Taming unbalanced training workloads in deep learning with
partial collective operations", PPoPP 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.quorum import Quorum


@register("eager-solo")
@dataclass(frozen=True, kw_only=True)
class EagerSolo(Quorum):
    """Whoever has a gradient first starts the round; for light imbalance."""

    wait_for: int | float | Literal["all", "majority", "designated"] = 1
    """As of `quorum`."""
