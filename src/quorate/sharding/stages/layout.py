"""The stages of each worker, and the order in which each worker computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from quorate.sharding.stages.orders import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Action,
    order,
    owner,
    refusal,
    schedule_named,
    stages_of,
)


@dataclass(frozen=True)
class Layout:
    """The layout of a pipeline."""

    schedule: str
    workers: int
    chunks: int
    """Stages of each worker."""
    microbatches: int

    @property
    def stages(self) -> int:
        """The stages of all workers."""
        return self.workers * self.chunks

    def owner(self, stage: int) -> int:
        """Return the worker of a stage."""
        return owner(stage, self.workers, schedule_named(self.schedule).placement)

    def stages_of(self, worker: int) -> tuple[int, ...]:
        """Return the stages of a worker."""
        return stages_of(worker, self.workers, self.chunks, SCHEDULES[self.schedule].placement)

    def order(self, microbatches: int) -> Sequence[Sequence[Action]]:
        """Return the actions of each worker. A batch with too few micro-batches for the schedule goes forward through
        all stages, and then backward."""
        return _order(self, microbatches)


@cache
def _order(layout: Layout, microbatches: int) -> Sequence[Sequence[Action]]:
    if not refusal(layout.schedule, layout.workers, layout.chunks, microbatches):
        return order(layout.schedule, layout.workers, layout.chunks, microbatches)
    actions = []
    for worker in range(layout.workers):
        stages, numbers = layout.stages_of(worker), range(microbatches)
        there = [Action(stage, FORWARD, number) for stage in stages for number in numbers]
        back = [Action(stage, BACKWARD, number) for stage in reversed(stages) for number in numbers]
        actions.append([*there, *back])
    return actions
