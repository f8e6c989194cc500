"""eager-SGD, majority as published: a worker drawn for each round starts it.

Idea: The strategy `quorum` with `wait_for` "designated". All workers draw the same initiator for each round from the
run's seed, and the round starts when that worker calls. If the order of arrival is exchangeable, on average half of the
workers, (P + 1) / 2, are fresh. If the drawn worker no longer steps, or does not answer, another one is drawn; once all
others have called, nobody waits for it.

Cost: As `quorum`; on average (P + 1) / 2 fresh gradients per round.

When it loses: When one worker is always the slowest, every P-th round waits for it, unless all others have called.

Honesty:
- slow worker: goes on; its gradients come late and count; every P-th round is its own

Paper: Li, Ben-Nun, Di Girolamo, Alistarh, Hoefler, "Taming unbalanced training workloads in deep learning with
partial collective operations", PPoPP 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.quorum import Quorum


@register("eager-majority")
@dataclass(frozen=True, kw_only=True)
class EagerMajority(Quorum):
    """A worker drawn at random starts each round; on average half of the gradients are fresh."""

    wait_for: int | float | Literal["all", "majority", "designated"] = "designated"
