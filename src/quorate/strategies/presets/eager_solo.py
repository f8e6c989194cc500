"""eager-SGD, solo: the first worker that has a gradient starts the round.

Idea: The strategy `quorum` with `wait_for` 1. Workers wait only for the exchange: the fastest worker calls, everyone
contributes its pending gradients, and late gradients are added to the next round.

Cost: As `quorum`; in the worst case each round has one fresh gradient.

When it loses: Under severe imbalance: 60.6 % against 69.7 % top-1 for majority in the paper's UCF101 (8 GPUs). For
light imbalance only.

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
