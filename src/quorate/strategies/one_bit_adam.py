"""1-bit Adam: after a warm-up, Adam's variance is frozen, and workers exchange one bit for each number of its momentum.

Idea: Gradients cannot be sent in one bit under Adam, because its variance is no linear function of them. The variance
soon settles, however. So the first steps are those of `all-reduce`. Then the variance stays as it is, and Adam is SGD
with momentum and a fixed rate for each number. In each step every worker adds its own gradient to the common momentum,
m_i = beta1 m + (1 - beta1) g_i. All go on with m, the mean of the codes of all m_i. A code has one bit per number, and
one scale for each piece of a part. What the code of a worker leaves out is remembered by the worker; what the code of
the sum leaves out is remembered by the owner of the piece. The reducer is `two-phase`.

Cost: In the warm-up as `all-reduce`. Then 2 (P - 1) / P d bits, and 4 bytes for each piece, which is 1 / 32 of a dense
sum in float32. They do not overlap with the backward pass. With a warm-up of 15 % that is 5.7 times fewer bytes.
Parameters of one dimension, or of less than `dense_below` numbers, stay dense. Numbers without a gradient in the
warm-up are not sent. One vector of memory for the errors of a worker, one for those of pieces, and five during a step.
On GPUs codes are formed and summed on the hosts.

When it loses: On fast networks, because encoding costs several passes over the momentum, and nothing overlaps. Where
the variance still changes: a rate that rises after the freeze, other data. With short trainings: `freeze="auto"` needs
1 / (1 - beta2) steps. Where gradients are clipped, each worker clips its own after the freeze. With few touched
numbers, such as rare words: those without a gradient in the warm-up are never trained.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; what the dead worker's memories held is lost
- pause: goes on; all wait until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it in every step
- corrupt gradient: goes on; one with NaN or infinity is reported with its worker, left out, or ends the training
  (`on_nonfinite`); others are averaged and so reach every worker
- resize: goes on; memories are divided among the new workers, and their sum is preserved
- resume: goes on; memories of all workers are in checkpoints

Paper: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed", ICML 2021,
Algorithm 1, and section 4 for the rule of `freeze="auto"` (0.96). Tang et al. leave out the corrections of Adam for its
beginning with 0, which are made here. Units by tensor are those of Li et al., "1-bit LAMB", 2021. That untouched
numbers are found is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate.core.means import Mean
from quorate.core.moments import AgreedMomentum
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.momenta import FreezeSettings, Momenta, begin_warm_up, mean_of_units


@register("one-bit-adam")
@dataclass(frozen=True, kw_only=True)
class OneBitAdam(FreezeSettings):
    """After a warm-up, Adam's variance is frozen, and its momentum is exchanged in one bit per number."""

    optimizers: ClassVar[Sequence[str]] = ("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")

    def start(self, worker: Worker) -> Momenta:
        begin_warm_up(worker, self.warm_up)
        return Momenta()

    def backward(self, worker: Worker) -> None:
        if not worker.state.is_frozen:
            worker.gradient = worker.means.of_gradient().wait()

    def step(self, worker: Worker) -> None:
        state: Momenta = worker.state
        if state.is_frozen:
            momentum = worker.replica.moments.momentum_after(worker.gradient)  # beta1 m + (1 - beta1) g_i
            mean = state.mean_of(worker, momentum, worker.weight).mean
            agreed = AgreedMomentum(vector=state.momentum_in(worker, mean))
            worker.update(momentum=agreed)  # x <- x - lr m / (sqrt v + eps)
            return
        worker.update()
        if state.is_over(worker, self.warm_up):
            self.apply(worker, mean_of_units(worker))

    def apply(self, worker: Worker, result: Mean) -> None:
        if not worker.state.is_frozen:  # later means are momenta, which workers that have paused need not
            worker.state.freeze(worker, result.mean)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.go_on(worker, worker.gradient)
