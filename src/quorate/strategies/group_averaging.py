"""Group averaging (WAGMA): every step a mean of models in a small group, without waiting; sometimes one of all.

Idea: After each local step a worker's model w goes into the mean of a group of S workers. Groups change from step to
step like the stages of a butterfly, so that after log P / log S steps an update has reached every worker. The first
worker to finish forms the mean from the models of the others: their model of this step, or the newest one of a late
worker. A background task on each worker answers the request. The sum is the same for the whole group: a late worker is
included with the model that was read from it. A worker that was on time continues from sum / S, a late one from (sum +
w) / (S + 1). Every tau steps (`sync_every`) all workers take a mean together, so no worker is further behind than that.
Momenta stay each worker's own, except for `momentum` at means of all.

Cost: Per step, d numbers from each of S - 1 workers, and d to each (the published butterfly sends d log2 S). On one
host they lie in shared memory and are not copied. Not overlapped; a worker waits for one message and its answer, and
every tau steps for the slowest worker. Memory: a copy of the parameters for every step that another worker of a group
is behind, at most tau.

When it loses: If workers are equally fast: with every group on time it is an all-reduce of models in every step. If one
worker is always slow: all wait for it every tau steps, and its old models pull back the others of its groups.

Honesty:
- worker death: goes on; groups become smaller, and the next mean of all is over the remaining workers. The dead
  worker's steps since its last answer are lost; with `on_death="stop"` all stop
- pause: goes on; its old model counts until the next mean of all, where everyone waits until it wakes up
- slow worker: goes on; its old models count; everyone waits for it at every mean of all
- corrupt gradient: untested; it corrupts its own replica, and within some steps all replicas
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: Li, Ben-Nun, Nadiradze, Di Girolamo, Dryden, Alistarh, Hoefler, "Breaking (global) barriers in parallel
stochastic optimization with wait-avoiding group averaging", IEEE TPDS 2021, Algorithm 2 (S the square root of P; the
authors' code has tau = 10 and always divides by S + 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.neighbours import Request
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.topology import Topology
from quorate.core.vectors import Flat
from quorate.gossip.topology.groups import Butterfly, group_size_near_root
from quorate.strategies import register
from quorate.strategies.parts.gossip import own_copy
from quorate.strategies.parts.group_models import GroupModels, mean_of
from quorate.strategies.parts.local_steps import LocalStepSettings, mean_of_all, take_mean


@dataclass(kw_only=True)
class State(GroupModels):
    """The models that this worker gives to its groups, and the groups."""

    groups: Topology = kept("drop")


@register("group-averaging")
@dataclass(frozen=True, kw_only=True)
class GroupAveraging(LocalStepSettings):
    """Each step averages models in a changing group without waiting, and from time to time over all workers."""

    sync_every: int | str = 10
    """tau: number of steps between two means of all workers, as in `local-sgd`."""
    group_size: int | Literal["root"] = "root"
    """S: number of workers in a group. "root": the power of two nearest to the square root of the number of workers, at
    least 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size != "root" and self.group_size < 2:
            raise ConfigurationError(f'group_size is {self.group_size}; it must be a number (at least 2), or "root"')

    @property
    def acts_on_pieces(self) -> bool:
        return False

    def start(self, worker: Worker) -> State:
        size = group_size_near_root(worker.size) if self.group_size == "root" else self.group_size
        state = State(groups=Butterfly(group_size=size), newest=own_copy(worker))
        worker.neighbours.serve("model", lambda request: self._answer(worker, state, request))
        return state

    def _answer(self, worker: Worker, state: State, request: Request) -> None:
        with worker.neighbours.lock:
            if request.header["means"] > state.means:
                state.held_requests.append(request)
                return
            model = state.model_for(request.header["turn"], has_ended=worker.has_ended)
        request.reply(model)

    def step(self, worker: Worker) -> None:
        state: State = worker.state
        worker.update()
        state.count(worker, self.period)
        if state.is_due(worker, self.period):
            self.apply(worker, mean_of_all(worker, *self.contribution(worker)))
        else:
            worker.parameters = self._mean_of_group(worker)

    def _mean_of_group(self, worker: Worker) -> Flat:
        state, near, turn = worker.state, worker.neighbours, int(worker.state.steps)
        own = own_copy(worker)
        edges = state.groups.out_edges(worker.rank, near.ranks[-1] + 1, state.means + turn)[1:]
        others = [edge.peer for edge in edges if edge.peer in near.ranks]
        with near.lock:
            taken = state.arrive(turn, own, len(others))
        asked = {peer: near.ask(peer, "model", turn=turn, means=state.means) for peer in others}
        models = {peer: model for peer, work in asked.items() if (model := work.wait()[0]) is not None}
        models[worker.rank] = own if taken is None else taken
        return mean_of([models[rank] for rank in sorted(models)] + ([] if taken is None else [own]))

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        return worker.replica.read(moments=self.momentum == "average"), worker.state.weight(self.period)

    def apply(self, worker: Worker, result: Mean) -> None:
        take_mean(worker, result.mean, self.momentum)
        worker.state.restart()
        with worker.neighbours.lock:
            requests = worker.state.begin_anew(own_copy(worker))
        for request in requests:
            self._answer(worker, worker.state, request)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        with worker.neighbours.lock:
            worker.state.newest = own_copy(worker)
