"""Synchronous SGD with backup workers: the slowest few are left out of every step.

Idea: The strategy `quorum` that waits for a share of the workers (nine in ten), drops later gradients, and divides by
the weight that has arrived. Gradients are never stale.

Cost: As `quorum`; the work of the workers left out is lost.

When it loses: With fewer than 10 workers nine in ten are all of them. It is then plain synchronous SGD, unless
`wait_for` is set, such as to 3 of 4, and then a quarter of the work is lost. When the same workers are always slow, the
model never learns from their data.

Honesty:
- slow worker: goes on; it is left out; its gradients are dropped, and their number is recorded

Paper: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016 (96 of 100 workers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.quorum import Quorum


@register("backup-workers")
@dataclass(frozen=True, kw_only=True)
class BackupWorkers(Quorum):
    """The slowest few workers are left out of every step, and their gradients are dropped."""

    wait_for: int | float | Literal["all", "majority", "designated"] = 0.9
    late: Literal["carry", "drop", "replace"] = "drop"
    divide_by: Literal["world", "arrived"] = "arrived"
