"""Hogwild!: workers of one host update the same parameters in shared memory, without locks; nobody waits.

Idea: The parameters are there once per host, not once per worker. After each gradient a worker's own optimizer updates
them where they lie, while the others read and write them too. What is left out is the lock: where an example touches
few numbers (the rows of a table), two workers seldom touch the same at once, and what they spoil of each other's is as
rare. A sparse gradient (`torch.nn.Embedding(sparse=True)`) updates its rows only; a dense one all numbers, with zeros
where there is nothing to change, which is still a read and a write. Each optimizer's momenta are its worker's own.

Cost: No bytes, and no waiting, in a step. One copy of the parameters per host; while all rest (an evaluation, a
checkpoint), two per worker. A number that one core writes has to come to the others' caches before they read it.

When it loses: With dense gradients, and several workers at one learning rate: each gradient is computed while others
are applied, as many in the mean as there are other workers, and an addition that another one overtakes is lost (torch
adds without atomic operations). Momentum, Adam and weight decay write all numbers, or remember each worker's gradients
alone. No two runs are the same, but in the virtual world.

Honesty:
- worker death: goes on; nobody waits for it, and half an update of its last one may stay; with `on_death="stop"` all
  stop
- pause: goes on; nobody waits for the worker until all rest
- slow worker: goes on; nobody waits for it, its gradients are more stale when they are applied, and it makes fewer
  steps
- corrupt gradient: goes on; a gradient with NaN or infinity is reported, skipped, or ends the training
  (`on_nonfinite`); any other one is in the parameters of all workers immediately
- resize: goes on; there is one model, and new workers begin with one old optimizer's state
- resume: goes on; with the one model, and every worker's own optimizer state

Paper: F. Niu, B. Recht, C. Re, S. J. Wright, "Hogwild!: a lock-free approach to parallelizing stochastic gradient
descent", NIPS 2011 (arXiv 1106.5730), Algorithm 1: x_v <- x_v - gamma b_v^T G_e(x) for each v of the example e drawn,
where adding to one number is atomic. Here the example is a batch, and gamma G_e what the user's optimizer makes of its
gradient.
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
    """Whether all workers stop when a worker dies, or the others continue without it."""

    def step(self, worker: Worker) -> None:
        worker.update()
