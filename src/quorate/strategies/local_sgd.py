"""Local SGD: workers step by themselves, and their parameters are averaged every H steps.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer on its own data; then all replace their
parameters by the mean of all. With H = 1 and plain SGD, or SGD with momentum that is averaged as well, it is
synchronous SGD. Where workers are unequal, H may be a number of examples, or a time: then each comes to the mean
after its first step beyond it, nobody waits for longer than one step of the slowest, and a replica counts by the
steps that it has made.

What the optimizer keeps (momenta) is a choice, and each is another algorithm: `keep` leaves every worker its own,
`average` averages it with the parameters, `reset` begins anew after every mean.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every H steps (times 1 + the optimizer's
vectors, where these are averaged), after the step, not overlapped; a copy of the parameters while that lasts. All
wait for the slowest, every H steps. At an evaluation and at the end there is one mean more.

When it loses: Where replicas drift apart: many steps at a high learning rate, or data that differs between workers.
The mean of P workers after H steps is behind P H synchronous steps at the same rate of learning per example, early in
training above all. Weight decay and clipping act H times, on each replica by itself.

Honesty:
- worker death: goes on; the next mean is of those that are left, and what is lost are its steps since the last one;
  `on_death="stop"` makes all stop
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean, unless `sync_every` is a time
- corrupt gradient: untested; it spoils one replica, and with it the next mean
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, Algorithm 1. Weights by what was
done are those of federated averaging (McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.means import Mean
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.local_steps import Every, LocalSteps, every


@register("local-sgd")
@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy):
    """Workers step by themselves, and their parameters are averaged every `sync_every` steps."""

    replicas = "meet"

    sync_every: int | str = 8
    """H: local steps between two means; or "4096 examples", or a time such as "30s"."""
    momentum: Literal["keep", "average", "reset"] = "keep"
    """What becomes of what the optimizer keeps, at a mean: each worker's own stays, it is averaged, or begins anew."""
    buffers: Literal["none", "mean", "rank0"] = "mean"
    """What buffers (BatchNorm's statistics) are at an evaluation and at the end: each one's own, the mean, rank 0's."""

    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others go on without a worker that has died, and its steps since the last mean; or all stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        every(self.sync_every)

    def period_of(self, worker: Worker) -> Every:
        """H, as it is now."""
        return every(self.sync_every)

    def start(self, worker: Worker) -> LocalSteps:
        return LocalSteps()

    def step(self, worker: Worker) -> None:
        local: LocalSteps = worker.state
        worker.update()  # line 4
        local.count(worker, self.period_of(worker), worker.weight)
        if local.is_due(worker, self.period_of(worker)):  # line 5
            self.meet(worker)

    def meet(self, worker: Worker) -> None:
        """It is time for a mean."""
        mine, weight = self.contribution(worker)
        self.apply(worker, Mean(mean=worker.means.of(mine, weight=weight).wait()))  # line 6

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        mine = worker.replica.read(moments=self.momentum == "average", numbers=self.numbers(worker))
        return mine, worker.state.weight(self.period_of(worker))

    def apply(self, worker: Worker, one: Mean) -> None:
        worker.measure_distance(one.mean)
        worker.replica.write(one.mean, moments=self.momentum == "average")
        if self.momentum == "reset":
            worker.replica.forget_moments()
        worker.state.restart()

    def numbers(self, worker: Worker) -> Sequence[float]:
        """What is averaged besides; equally many on all workers."""
        return ()
