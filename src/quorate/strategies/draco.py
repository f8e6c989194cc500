"""DRACO: workers compute the same batches, and the exact mean is decoded even if some of them send anything.

Idea: With the repetition code, groups of 2 s + 1 workers compute the same batch, and the gradient counts that more than
half of the group have sent, bit for bit. With the cyclic code each of P workers computes 2 s + 1 batches one after the
other, its own and those of the ranks behind it. It sends one combination of their gradients. All combinations together
show which workers were wrong, and give the mean of the P batches. Either way the result is the exact mean of correct
gradients, not an approximation: any s workers of a group (repetition), or of all (cyclic), may send anything.

Cost: The redundancy, which is the least possible: 2 s + 1 times the computation for the same batches. The bytes are
those of an all-reduce, whose parts overlap with the backward pass under the repetition code; two vectors of memory, and
one more with the cyclic code. With the cyclic code one step of the optimizer takes 2 s + 1 calls of `step`, and the
last one updates.

When it loses: Where no worker is wrong: it takes 2 s + 1 times as long. Where more than s are wrong; with the
repetition code there is no warning if these agree. If a computation is not bitwise equal on all workers of a group:
random numbers of dropout, different devices, nondeterministic algorithms. The cyclic code tolerates rounding, and is
exact up to it. Rules (`robust`) compute each batch once, and come near the mean.

Honesty:
- worker death: stops cleanly; the others leave within a second, with an error that names it; or goes on, with
  `on_death="continue"`: the remaining workers vote, or decode
- pause: goes on; all wait until the worker wakes up, or stop when the time limit of waits (600 seconds) is over
- slow worker: goes on; everyone waits for it in every step
- corrupt gradient: goes on; up to `s` wrong workers of a group (or of all) have no effect on the mean
- resize: goes on; groups are formed again for the new number of workers (with the cyclic code refused in the middle of
  an epoch)
- resume: goes on; with the same bits as an uninterrupted run, at the same number of workers

Paper: Chen, Wang, Charles and Papailiopoulos, "DRACO: Byzantine-resilient distributed training via redundant
gradients", ICML 2018. The cyclic code here is real (`aggregation.cyclic_code`); the paper's is complex.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from quorate.core.redundancy import Redundancy
from quorate.core.strategy import Strategy, Worker
from quorate.strategies import register
from quorate.strategies.parts.coded_steps import CodedSteps, check_redundancy, cyclic_among, in_groups


@register("draco")
@dataclass(frozen=True, kw_only=True)
class DRACO(Strategy):
    """Several workers compute each batch, and a code recovers the mean of the correct gradients."""

    compresses = "gradients"
    reduction: ClassVar[Mapping[str, object]] = {"reduce": "mean"}

    s: int | None = None
    """Number of faulty workers tolerated in each group (with the cyclic code: among all workers). By default 1 if there
    are enough workers."""
    code: Literal["repetition", "cyclic"] = "repetition"
    """Whether the workers of a group compute the same batch, or every worker computes several batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_redundancy(self.s)

    @property
    def agrees_in_backward(self) -> bool:
        return self.code == "repetition"

    @property
    def lets_join(self) -> bool:
        return False

    @property
    def redundancy(self) -> Callable[[int], Redundancy]:
        return partial(in_groups if self.code == "repetition" else cyclic_among, "draco", self.s, 2)

    def start(self, worker: Worker) -> CodedSteps:
        return CodedSteps()

    def backward(self, worker: Worker) -> None:
        if self.agrees_in_backward:
            worker.gradient = worker.means.of_gradient().wait()  # begun during backward

    def step(self, worker: Worker) -> None:
        if self.agrees_in_backward:
            worker.update()
            return
        state: CodedSteps = worker.state
        code = state.added(worker, self.redundancy(worker.size))
        if code is not None:
            worker.update(worker.means.of(code).wait())
