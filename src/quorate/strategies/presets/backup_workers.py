"""Synchronous SGD with backup workers: the slowest few are left out of every step.

Idea: The strategy `quorum` that waits for a share of the workers (nine in ten), drops what comes later, and divides
by what has arrived. Gradients are never stale.

Cost: As `quorum`; the work of those left out is lost.

When it loses: With fewer than 10 workers nine in ten are all of them: it is plain synchronous SGD, unless `wait_for`
is set, such as to 3 of 4, and then a quarter of the work is lost. Where the same workers are always slow: what they
see is never learnt.

Honesty:
- worker death: goes on; within a second the others form rounds without it, with equal replicas; what it had not given
  is lost; `on_death="stop"` makes all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; it is left out, and its gradients are dropped and counted
- corrupt gradient: goes on; one that is not finite is told with its worker, or ends the training (`on_nonfinite`); any
  other is added like the rest
- resize: goes on; what was pending on the old workers is dealt out to the new ones, and what is left of the epoch too
- resume: goes on; what was pending is pending, and every gradient counts once

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
    """The slowest few are left out of every step, and what they come with is dropped."""

    wait_for: int | float | Literal["all", "majority", "designated"] = 0.9
    """As of `quorum`."""
    late: Literal["carry", "drop", "replace"] = "drop"
    """As of `quorum`."""
    divide_by: Literal["world", "arrived"] = "arrived"
    """As of `quorum`."""
