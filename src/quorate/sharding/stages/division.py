"""A model that is divided into stages, before any layer is removed from it."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import Module

from quorate.sharding.stages.orders import Layout
from quorate.sharding.stages.route import Shapes
from quorate.sharding.stages.units import Unit


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
