"""eager-SGD, solo: the first worker that has a gradient starts the round.

Idea: The strategy `quorum` with `wait_for` 1. Nobody waits for anybody but for the exchange: the fastest worker
calls, everyone gives what is pending, and those that are late find their gradients added to the next round.

Cost: As `quorum`; in the worst case one fresh gradient in each round.

When it loses: Under severe imbalance: 60.6 % against 69.7 % top-1 for majority in the paper's UCF101 (8 GPUs). For
light imbalance only.

Honesty:
- worker death: stops cleanly; the others leave within a second, with an error that names the dead worker
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; its gradients come late and count, within `max_staleness`
- corrupt gradient: untested; it is added like any other
- resize: not yet
- resume: not yet

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
