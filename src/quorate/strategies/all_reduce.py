"""Synchronous data parallelism: every step uses the mean of all workers' gradients.

Idea: Every worker computes the gradient of its own batch, and every worker's optimizer gets the mean of all gradients.
So all replicas take the same steps and stay equal, as if one worker had computed one large batch. Parts of the gradient
are sent while the backward pass still computes the rest.

Cost: Per step and worker, with P workers and d parameters, 2 (P - 1) / P d numbers are sent (ring), overlapped with the
backward pass. Memory holds one flat copy of the gradient. All wait for the slowest. With `on_death="continue"` each
worker also exchanges two to four short messages with the launcher in every step. After a death each worker instead
sends d numbers to every other worker after the backward pass.

When it loses: When workers differ in speed or in work. Every step takes as long as its slowest worker, and with more
workers it is more likely that one of them is late. When the network is too slow to hide the exchange behind the
backward pass.

Honesty:
- worker death: stops cleanly; the others leave within a second, with an error that names it. With `on_death="continue"`
  they go on: the current sum is formed again over the remaining workers, and with `batch="kept"` over all micro-batches
- pause: goes on; all wait until the worker wakes up, or stop when the time limit of waits (600 seconds) is over
- slow worker: goes on; everyone waits for it in every step
- corrupt gradient: goes on; a gradient with NaN or infinity is reported with its worker, or ends the training
  (`on_nonfinite`); any other one is averaged and so reaches every worker
- resize: goes on; a checkpoint loads at any number of workers, and the rest of the epoch is distributed again
- resume: goes on; with the same bits as an uninterrupted run, at the same number of workers

Paper: Dean et al., "Large scale distributed deep networks", NeurIPS 2012; Goyal et al., "Accurate, large minibatch SGD:
training ImageNet in 1 hour", 2017, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.strategy import Worker
from quorate.strategies import register
from quorate.strategies.parts.micro_batches import MicroBatches


@register("all-reduce")
@dataclass(frozen=True, kw_only=True)
class AllReduce(MicroBatches):
    """The gradients of all workers are averaged in every backward pass; equal to torch DDP."""

    compresses = "gradients"
    _sparse_gradients = "rows"

    on_death: Literal["stop", "continue"] = "stop"
    """Whether all workers stop when one dies, or the others continue. To continue, every step waits until each worker
    confirms that it has the sum. After a death each worker sends its full gradient to every other worker, after the
    backward pass."""

    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "rank0-each-step"
    """Buffers that forward passes change (codebooks, queues) are set to those of rank 0 in each step, as in DDP. At an
    evaluation and at the end all buffers are set to those of rank 0. With "rank0", "mean" and "none", buffers are
    exchanged at an evaluation and at the end only.
    """

    @property
    def _keeps_batch(self) -> bool:
        return True

    @property
    def acts_on_pieces(self) -> bool:
        return True

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.means.of_gradient().wait()  # begun during backward

    def step(self, worker: Worker) -> None:
        worker.update()
