"""Hierarchical local SGD: means within groups of nearby workers every H steps, of all workers every H times H_b.

Idea: Links inside a machine are fast, links between machines are slow. Workers take H local steps (`sync_every`), then
the workers of a group replace their parameters by the mean of the group. Every H_b-th time (`across_every`) they take
the mean of all workers instead. With H_b = 1 it is `local-sgd` with H. With groups of one worker, it is `local-sgd`
with H times H_b. With a single group, its parameters are those of `local-sgd` with H.

A group is the workers of one host, or `group_size` consecutive ranks.

Cost: With G workers in a group and d parameters, each sends (G - 1) d numbers within the group every H steps. On one
host they lie in shared memory, and are not copied for each receiver. Every H H_b steps each sends 2 (P - 1) / P d among
all. Both are sent after the step; memory meanwhile holds a copy of the parameters of each group member. Each waits for
the slowest of its group every H steps, and for the slowest of all every H H_b steps.

When it loses: Where links between groups are as fast as those inside: then `local-sgd` with H averages all workers more
often at the same cost. Where groups drift apart: data that differs between hosts, many steps at a high learning rate.

Honesty:
- worker death: goes on; its group becomes smaller, and its steps since the last mean of the group, or of all, are lost;
  with `on_death="stop"` all stop
- pause: goes on; its group waits at the next mean until the worker wakes up, the other groups at the next mean of all
- slow worker: goes on; everyone waits for it, unless `sync_every` is a time
- corrupt gradient: untested; it corrupts one replica, its group at the next mean, and all workers at the next mean of
  all
- resize: goes on; from the mean of the old replicas, in new groups
- resume: goes on; every worker with its own replica

Paper: Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020, hierarchical local SGD in the
appendix (H and H_b).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.topology import Edge
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.gossip import own_copy
from quorate.strategies.parts.local_steps import LocalSteps, LocalStepSettings, Period, mean_of_all, take_mean


@dataclass(kw_only=True)
class State(LocalSteps):
    """The local steps since the last mean of all, and the group with its means since then."""

    group: tuple[int, ...] = kept("drop")
    """Ranks, this worker's own among them; some may not have joined yet."""
    meetings: float = kept("average", default=0)


@register("hierarchical-local-sgd")
@dataclass(frozen=True, kw_only=True)
class HierarchicalLocalSGD(LocalStepSettings):
    """Means within groups of close workers every `sync_every` steps, and over all workers less often."""

    across_every: int = 4
    """H_b: every H_b-th mean is over all workers, the others over groups."""
    group_size: int | Literal["host"] = "host"
    """Size of a group: the workers of one host, or a number of consecutive ranks."""
    momentum: Literal["keep", "average", "reset"] = "keep"
    """Optimizer state at a mean of all workers, as in `local-sgd`; a mean of a group does not change it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.across_every < 1 or (self.group_size != "host" and self.group_size < 1):
            settings = f"across_every={self.across_every}, group_size={self.group_size}"
            raise ConfigurationError(f'{settings}: both must be at least 1; group_size may also be "host"')

    @property
    def period_of_all(self) -> Period:
        """H H_b, from one mean of all workers to the next."""
        return self.period * self.across_every

    def start(self, worker: Worker) -> State:
        worker.neighbours.open()
        if self.group_size == "host":
            hosts = worker.neighbours.hosts()
            return State(group=tuple(rank for rank, host in enumerate(hosts) if host == hosts[worker.rank]))
        first = worker.rank - worker.rank % self.group_size
        return State(group=tuple(range(first, first + self.group_size)))

    def step(self, worker: Worker) -> None:
        state: State = worker.state
        worker.update()
        state.count(worker, self.period_of_all)
        if not state.is_due(worker, self.period * (state.meetings + 1)):
            return
        if state.meetings + 1 < self.across_every:
            state.meetings += 1
            worker.parameters = self._mean_of_group(worker)
        else:
            self.apply(worker, mean_of_all(worker, *self.contribution(worker)))

    def _mean_of_group(self, worker: Worker) -> Flat:
        state: State = worker.state
        edges = [Edge(peer, 1.0) for peer in state.group if peer in worker.neighbours.ranks]
        under_way = worker.neighbours.exchange(
            own_copy(worker), edges, edges, scalars=(state.weight(self.period_of_all),)
        )
        messages = [message for _, message in sorted(under_way.wait().items())]
        total = sum(message.scalars[0] for message in messages)
        mean = messages[0].x * (messages[0].scalars[0] / total)
        for message in messages[1:]:
            mean.add_(message.x, message.scalars[0] / total)
        return mean

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        return worker.replica.read(moments=self.momentum == "average"), worker.state.weight(self.period_of_all)

    def apply(self, worker: Worker, result: Mean) -> None:
        take_mean(worker, result.mean, self.momentum)
        worker.state.restart()
        worker.state.meetings = 0
