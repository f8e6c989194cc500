"""eager-SGD, solo: the first worker that has a gradient starts the round.

Idea: The strategy `quorum` with `wait_for` 1. Workers wait only for the exchange: the fastest worker calls, everyone
contributes its pending gradients, and late gradients are added to the next round.

Cost: As `quorum`; in the worst case each round has one fresh gradient.

When it loses: Under severe imbalance: 60.6 % against 69.7 % top-1 for majority in the paper's UCF101 (8 GPUs). For
light imbalance only.

Honesty:
- worker death: goes on; within a second the others form rounds without it, with equal replicas; gradients it had not
  sent are lost; with `on_death="stop"` all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; its gradients come late and count, within `max_staleness`
- corrupt gradient: goes on; a gradient with NaN or infinity is reported with its worker, or ends the training
  (`on_nonfinite`); any other one is added like a correct one
- resize: goes on; pending gradients of the old workers are distributed over the new ones, and so is the rest of the
  epoch
- resume: goes on; pending gradients stay pending, and every gradient counts once

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
    """The first worker with a gradient starts the round; for light imbalance."""

    wait_for: int | float | Literal["all", "majority", "designated"] = 1
    """As of `quorum`."""
