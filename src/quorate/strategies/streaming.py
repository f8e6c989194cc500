"""What strategies with outer steps have in common: local steps, and fragments that come to their means in turn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.fragments import fragments_of
from quorate.strategies.parts.local_steps import Every, every
from quorate.strategies.parts.outer_steps import Outer, OuterSteps
from quorate.strategies.post_local_sgd import PostLocalSGD
from quorate.strategies.post_local_sgd import State as PostLocalState


@dataclass(kw_only=True)
class State(Outer, PostLocalState):
    """What local steps keep, and the outer optimizers."""


@dataclass(frozen=True, kw_only=True)
class Streaming(PostLocalSGD):
    """Local steps, after which an outer optimizer makes a step of what all went."""

    fragments: int = 1
    """K: in how many parts the parameters come to their means, one after the other, H / K apart."""
    overlap: int = 0
    """Local steps that are made while a mean is under way."""
    merge: float = 0.5
    """What the own parameters count beside the outer step's, where steps were made meanwhile."""

    @property
    @abstractmethod
    def outer_steps(self) -> OuterSteps:
        """How they are made."""

    @property
    def lets_join(self) -> bool:
        return self.overlap == 0

    def period_of(self, worker: Worker) -> Every:
        whole = every(self.sync_every)
        return Every(whole.count / self.fragments, whole.unit)

    def start(self, worker: Worker) -> State:
        is_local, x = super().start(worker).is_local, worker.parameters
        before = self.outer_steps.place(x) if is_local else None
        cut, since = fragments_of(x.layout, self.fragments), [0.0] * self.fragments
        return State(is_local=is_local, before=before, memory=[{} for _ in cut], fragments=cut, since=since)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.before = self.outer_steps.place(at)
            return
        super().restored(worker, at)
        self.outer_steps.resume(worker.state, worker.parameters if worker.state.is_local else None)

    def step(self, worker: Worker) -> None:
        if worker.state.is_local:
            worker.state.gone(worker.examples if every(self.sync_every).unit == "examples" else worker.weight)
        super().step(worker)
        self.outer_steps.take_in(worker, worker.state, age=self.overlap)

    def meet(self, worker: Worker) -> None:
        self.outer_steps.begin(worker, *self.contribution(worker), worker.state)
        worker.state.restart()

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        state: State = worker.state
        if not state.is_local:
            return super().contribution(worker)
        return self.outer_steps.give(worker, state, every(self.sync_every).count)

    def apply(self, worker: Worker, one: Mean) -> None:
        state: State = worker.state
        if state.is_local:
            state.restart()
            self.outer_steps.take(worker, state.given, one.mean, state)
            return
        super().apply(worker, one)  # the last synchronous step
        state.before = self.outer_steps.place(worker.replica.parameters_of(one.mean))

    def settle(self, worker: Worker) -> None:
        if worker.state.is_local and (self.fragments > 1 or self.overlap):
            for _ in range(self.fragments):
                self.meet(worker)
            self.outer_steps.take_in(worker, worker.state)
