"""eager-SGD, majority as published: a worker drawn for each round starts it.

Idea: The strategy `quorum` with `wait_for` "designated". All workers draw the same initiator for each round from the
run's seed, and the round starts when that worker calls. If the order of arrival is exchangeable, half of the workers
are fresh in the mean, (P + 1) / 2. Where the drawn worker does not step any more, or does not answer, another one is
drawn; where all others have called, it is not waited for.

Cost: As `quorum`; (P + 1) / 2 fresh gradients in a round in the mean.

When it loses: Where one worker is always the slowest: every P-th round waits for it, as far as the others have not
called.

Honesty:
- worker death: goes on; within a second the others form rounds without it, with equal replicas; what it had not given
  is lost; `on_death="stop"` makes all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; its gradients come late and count; every P-th round is its own
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


@register("eager-majority")
@dataclass(frozen=True, kw_only=True)
class EagerMajority(Quorum):
    """A worker drawn for each round starts it; the published majority."""

    wait_for: int | float | Literal["all", "majority", "designated"] = "designated"
    """As of `quorum`."""
