"""The stages of each worker, the order in which each worker computes, and a model that is about to be divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch.nn import Module

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
from quorate.sharding.stages.route import Shapes
from quorate.sharding.stages.units import Unit


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


@dataclass
class Stages:
    """The division of a model that is about to be cut: every worker still holds all of it."""

    layout: Layout
    units: list[Unit]
    stage_of: list[int]
    direct: dict[str, int]
    """The stages of parameters outside of units."""
    shapes: Shapes
    words: str

    def here(self, worker: int) -> list[Unit]:
        """Return the units of a worker."""
        own = self.layout.stages_of(worker)
        return [unit for unit, stage in zip(self.units, self.stage_of, strict=True) if stage in own]

    @property
    def cut(self) -> list[list[str]]:
        """The units of each worker, and its parameters outside of units, by name."""
        names = [[unit.name for unit in self.here(worker)] for worker in range(self.layout.workers)]
        for name, stage in self.direct.items():
            names[self.layout.owner(stage)].append(name)
        return names

    def blocks(self, worker: int) -> list[tuple[str, Module]]:
        """Return the modules of a worker, each once, by name."""
        return list({id(unit.module): (unit.name, unit.module) for unit in self.here(worker)}.values())
