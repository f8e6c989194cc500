"""Hogwild!: workers of one host update the same parameters in shared memory, without locks; nobody waits.

Idea: The parameters exist once per host, not once per worker. After each gradient a worker's own optimizer updates them
in place, while the others read and write them too. There is no lock: if an example touches few numbers (the rows of a
table), two workers seldom touch the same ones at once, and lost updates are as rare. A sparse gradient
(`torch.nn.Embedding(sparse=True)`) updates only its rows; a dense one updates all numbers, and even a zero costs a read
and a write. Each optimizer's momenta are its worker's own.

Cost: No bytes and no waiting in a step. One copy of the parameters per host; in a pause of all workers (an
evaluation, a checkpoint), two per worker. A number written by one core has to reach the caches of the others before
they can read it.

When it loses: With dense gradients, and several workers at one learning rate. While a gradient is computed, on average
one gradient of each other worker is applied. An addition that is overwritten by another is lost (torch adds without
atomic operations). Momentum, Adam and weight decay write all numbers, or remember only one worker's gradients. No two
runs are the same, except in the virtual world.

Honesty:
- worker death: goes on; no worker waits for it, and its last update may stay half applied; with `on_death="stop"` all
  stop
- pause: goes on; no worker waits for it until the next pause of all workers
- slow worker: goes on; no worker waits for it; its gradients are more stale when they are applied, and it takes fewer
  steps
- corrupt gradient: goes on; a gradient with NaN or infinity is reported, skipped, or ends the training
  (`on_nonfinite`); any other one is in the parameters of all workers immediately
- resize: goes on; there is one model, and new workers start with the state of one old optimizer
- resume: goes on; with the one model, and every worker's own optimizer state

Paper: F. Niu, B. Recht, C. Re, S. J. Wright, "Hogwild!: a lock-free approach to parallelizing stochastic gradient
descent", NIPS 2011 (arXiv 1106.5730), Algorithm 1: x_v <- x_v - gamma b_v^T G_e(x) for each v of the drawn example e,
where adding to one number is atomic. Here an example is a batch, and gamma G_e the update that the user's optimizer
computes from its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.strategy import Strategy, Worker
from quorate.strategies import register


@register("hogwild")
@dataclass(frozen=True, kw_only=True)
class Hogwild(Strategy):
    """Workers of one host update the same parameters in shared memory, without locks."""

    meets = "nobody"
    replicas = "shared"

    on_death: Literal["stop", "continue"] = "continue"
    """Whether all workers stop when one dies, or the others continue without it."""

    def step(self, worker: Worker) -> None:
        worker.update()
