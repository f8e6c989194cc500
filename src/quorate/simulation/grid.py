"""What is simulated: every strategy with every number of workers, imbalance and network; all else equal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from quorate.core.durations import Durations
from quorate.core.errors import ConfigurationError
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import Pace, parse_pace
from quorate.simulation.busy import Busy, Modelled
from quorate.simulation.codes import CodingCost, codes_of
from quorate.simulation.links import Links
from quorate.simulation.models import Times
from quorate.simulation.played import Case, Watch

if TYPE_CHECKING:
    from quorate.means.reduction import Reduction
    from quorate.simulation.calibrated import Calibration
    from quorate.simulation.figures import Figures


@dataclass(frozen=True, kw_only=True)
class SimulatedArm:
    """One strategy with its settings; `text` is how it was written. `times` is None where only gradients will tell."""

    text: str
    strategy: str
    settings: Mapping[str, object]
    times: Times | None
    reduction: Reduction | None = None
    """How its vectors are written small."""
    cost: CodingCost = CodingCost()  # noqa: RUF009 - it is frozen
    """Of doing so."""


@dataclass(frozen=True, kw_only=True)
class SimulatedCell:
    """One row to be."""

    arm: SimulatedArm
    workers: int
    imbalance: str | None
    links: Links

    @property
    def in_words(self) -> str:
        """As progress names it."""
        late = "" if self.imbalance is None else f", {self.imbalance}"
        return f"{self.arm.text}, {self.workers:,} worker{'s' * (self.workers > 1)}{late}"


class Told(Protocol):
    """Told of what happens."""

    def begins(self, number: int, of: int, cell: SimulatedCell) -> Watch:
        """Cell `number` (from 0) begins; what is returned is told its share."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell, simulated."""

    strategy: str
    workers: int
    imbalance: str | None
    network: str
    figures: Figures
    loss: float | None = None
    """Of training, over the last tenth of the steps; None where there were no gradients."""
    quality: float | None = None
    """On held-out data, at the end."""
    wall_seconds: float = 0.0
    """That this machine took for it."""
    is_recorded: bool = False
    """Whether it was measured, not simulated."""

    def as_json(self) -> dict[str, Any]:
        """For `simulate.json`."""
        own = {key: value for key, value in asdict(self).items() if key != "figures"}
        return {**own, "wall_seconds": round(self.wall_seconds, 3), **asdict(self.figures)}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All of it; every list has an entry at least."""

    arms: Sequence[SimulatedArm]
    workers: Sequence[int]
    imbalances: Sequence[str | None]
    networks: Sequence[Links]
    steps: int
    parameters: int
    seed: int
    pace: str | None
    compute: Durations | None
    """None: as in the run that this is like."""
    examples: int | None
    like: Calibration | None = None
    """The run whose times of work are taken."""
    measured: Mapping[str, Links] = field(default_factory=dict)
    """What was found between workers, where runs tell, by the kind of what they talk in; it goes before the network."""

    def links_of(self, cell: SimulatedCell) -> Links:
        """What is between its workers."""
        return cell.links if cell.arm.times is None else self.measured.get(cell.arm.times.kind, cell.links)

    def cells(self) -> Iterator[SimulatedCell]:
        """In the order of the table."""
        for links in self.networks:
            for imbalance in self.imbalances:
                for arm in self.arms:
                    for workers in self.workers:
                        yield SimulatedCell(arm=arm, workers=workers, imbalance=imbalance, links=links)

    def check(self) -> None:
        """Raise `ConfigurationError` for the first cell that cannot be."""
        for cell in self.cells():
            if cell.arm.times is not None:
                cell.arm.times.check(cell.workers)
            self._busy(cell)

    def case_of(self, cell: SimulatedCell, watch: Watch) -> Case:
        """`cell`, to be played."""
        case = Case(
            workers=cell.workers,
            steps=self.steps,
            parameters=self.parameters,
            busy=self._busy(cell),
            links=self.links_of(cell),
            seed=self.seed,
            examples=self.examples,
            watch=watch,
        )
        reduction = cell.arm.reduction
        if reduction is None:
            return case
        return replace(case, codes=codes_of(reduction, self.parameters, cell.workers, case.nbytes, cell.arm.cost))

    def _busy(self, cell: SimulatedCell) -> Busy:
        like = self.like
        if like is not None and cell.imbalance is None and self.pace is None:  # as it was recorded
            return like.busy
        imbalance = cell.imbalance or (like.imbalance if like is not None else None)
        pace = self._pace(cell.workers)
        late = None if imbalance is None else parse_imbalance(imbalance, seed=self.seed, size=cell.workers)
        if like is None:
            assert self.compute is not None
            return Modelled(compute=self.compute, pace=pace, imbalance=late)
        bare = like.undelayed
        return Modelled(compute=bare.before, pace=pace, imbalance=late, update=bare.after)

    def _pace(self, workers: int) -> Pace | None:
        text = self.pace or (self.like.pace if self.like is not None else None)
        if text is None:
            return None
        pace = parse_pace(text, seed=self.seed, size=workers)
        if pace.needs_tokens:
            raise ConfigurationError(
                f'the pace "{text}" counts tokens, which a simulation does not have; give --pace a duration or a trace'
            )
        return pace


def simulated(grid: Grid, told: Told) -> Iterator[Row]:
    """Every cell's row, one after the other; times alone."""
    from quorate.simulation.figures import figures_of

    cells = list(grid.cells())
    for number, cell in enumerate(cells):
        assert cell.arm.times is not None
        began = time.perf_counter()
        case = grid.case_of(cell, told.begins(number, len(cells), cell))
        figures = figures_of(cell.arm.times.play(case), case.workers, case.steps)
        row = Row(
            strategy=cell.arm.text,
            workers=cell.workers,
            imbalance=cell.imbalance or (None if grid.like is None else grid.like.imbalance),
            network=grid.links_of(cell).text,
            figures=figures,
        )
        yield replace(row, wall_seconds=time.perf_counter() - began)
