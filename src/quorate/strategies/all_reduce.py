"""Synchronous data parallelism: every step uses the mean of all workers' gradients.

Dean et al., "Large scale distributed deep networks", NeurIPS 2012; Goyal et al., "Accurate, large minibatch SGD:
training ImageNet in 1 hour", 2017, section 2. Cost per step and worker with P workers and d parameters: 2 (P - 1) / P d
numbers sent (ring), overlapped with backward; one flat copy of the gradient in memory. All wait for the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.strategy import Strategy, Worker
from quorate.strategies import register


@register("all-reduce")
@dataclass(frozen=True, kw_only=True)
class AllReduce(Strategy):
    """All workers' gradients are averaged at the end of every backward; equal to torch DDP."""

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.peers.mean(worker.gradient, weight=worker.weight).wait()  # begun during backward

    def step(self, worker: Worker) -> None:
        worker.update(worker.gradient)

    def finish(self, worker: Worker) -> None:
        worker.keep_company()
