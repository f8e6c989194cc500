"""The cells of a simulation: every strategy with every number of workers, imbalance and network; all else equal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from quorate.core.durations import Durations
from quorate.core.errors import ConfigurationError
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import Pace, parse_pace
from quorate.simulation.busy import Busy, Drawn, Modelled
from quorate.simulation.codes import CodingCost, codes_of
from quorate.simulation.links import Links
from quorate.simulation.models import Times
from quorate.simulation.played import Case, Watch

if TYPE_CHECKING:
    from quorate.means.reduction import Reduction
    from quorate.simulation.calibrated import Calibration
    from quorate.simulation.figures import Figures

_MOST_DRAWN = 1 << 22
"""Steps of workers whose seconds are kept for further cells, about."""


@dataclass(frozen=True, kw_only=True)
class SimulatedArm:
    """One strategy with its settings; `text` is the argument. `times` is None where only gradients can be simulated."""

    text: str
    strategy: str
    settings: Mapping[str, object]
    times: Times | None
    reduction: Reduction | None = None
    """Compression of its vectors."""
    cost: CodingCost = CodingCost()  # noqa: RUF009 - it is frozen
    """The cost of compression."""


@dataclass(frozen=True, kw_only=True)
class SimulatedCell:
    """One future row."""

    arm: SimulatedArm
    workers: int
    imbalance: str | None
    links: Links

    @property
    def in_words(self) -> str:
        """A description for progress messages."""
        late = "" if self.imbalance is None else f", {self.imbalance}"
        return f"{self.arm.text}, {self.workers:,} worker{'s' * (self.workers > 1)}{late}"


class Progress(Protocol):
    """Callbacks of progress."""

    def begins(self, number: int, of: int, cell: SimulatedCell) -> Watch:
        """Begin cell `number` (from 0); the returned function is called with its completed share."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One simulated cell."""

    strategy: str
    workers: int
    imbalance: str | None
    network: str
    figures: Figures
    loss: float | None = None
    """Training loss, over the last tenth of the steps; None without gradients."""
    quality: float | None = None
    """On held-out data, at the end."""
    wall_seconds: float = 0.0
    """Seconds that this machine took for it."""
    is_recorded: bool = False
    """Whether it was measured, not simulated."""

    def as_json(self) -> dict[str, Any]:
        """Return the row for `simulate.json`."""
        own = {key: value for key, value in asdict(self).items() if key != "figures"}
        return {**own, "wall_seconds": round(self.wall_seconds, 3), **asdict(self.figures)}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All cells; every list has at least one entry."""

    arms: Sequence[SimulatedArm]
    workers: Sequence[int]
    imbalances: Sequence[str | None]
    networks: Sequence[Links]
    steps: int
    parameters: int
    seed: int
    pace: str | None
    compute: Durations | None
    """None: as in the run `like`."""
    examples: int | None
    like: Calibration | None = None
    """The run from which times are taken."""
    measured: Mapping[str, Links] = field(default_factory=dict)
    """Links measured in runs, by the kind of exchanges; they take precedence over the network."""
    drawn: dict[tuple[int, str | None], Drawn] = field(default_factory=dict, repr=False, compare=False)
    """Seconds of the workers of the newest cells, which strategies and networks have in common."""

    def links_of(self, cell: SimulatedCell) -> Links:
        """Return the links between its workers."""
        return cell.links if cell.arm.times is None else self.measured.get(cell.arm.times.kind, cell.links)

    def cells(self) -> Iterator[SimulatedCell]:
        """Yield the cells in the order of the table."""
        for links in self.networks:
            for imbalance in self.imbalances:
                for arm in self.arms:
                    for workers in self.workers:
                        yield SimulatedCell(arm=arm, workers=workers, imbalance=imbalance, links=links)

    def check(self) -> None:
        """Raise `ConfigurationError` for the first impossible cell."""
        for cell in self.cells():
            if cell.arm.times is not None:
                cell.arm.times.check(cell.workers)
            self._busy(cell)

    def case_of(self, cell: SimulatedCell, watch: Watch) -> Case:
        """Return the case of `cell`."""
        key = cell.workers, cell.imbalance
        if key not in self.drawn and sum(workers for workers, _ in self.drawn) * self.steps > _MOST_DRAWN:
            self.drawn.clear()
        case = Case(
            workers=cell.workers,
            steps=self.steps,
            parameters=self.parameters,
            busy=self.drawn.setdefault(key, Drawn(self._busy(cell), cell.workers)),
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
                f'the minimum step time "{text}" counts tokens, which a simulation does not have; '
                "give --min-step-time a duration or a trace"
            )
        return pace


def simulated(grid: Grid, progress: Progress) -> Iterator[Row]:
    """Yield every cell's row, one after the other; times alone."""
    from quorate.simulation.figures import figures_of

    cells = list(grid.cells())
    for number, cell in enumerate(cells):
        assert cell.arm.times is not None
        began = time.perf_counter()
        case = grid.case_of(cell, progress.begins(number, len(cells), cell))
        figures = figures_of(cell.arm.times.play(case), case.workers, case.steps)
        row = Row(
            strategy=cell.arm.text,
            workers=cell.workers,
            imbalance=cell.imbalance or (None if grid.like is None else grid.like.imbalance),
            network=grid.links_of(cell).text,
            figures=figures,
        )
        yield replace(row, wall_seconds=time.perf_counter() - began)


class _Silent:
    """No progress messages, as it takes a second or two."""

    def begins(self, number: int, of: int, cell: SimulatedCell) -> Watch:
        return lambda share: None


def more_workers(name: str, workers: Sequence[int]) -> list[Row]:
    """Return a row for each number of `workers`, like the run in the folder `name`.

    Further workers are like the recorded ones, in blocks of as many, and messages take as long as there. Raises
    `ConfigurationError` where a simulation cannot be calibrated by the run.
    """
    from quorate.simulation.calibrated import calibrated

    like = calibrated(name)
    own = like.times
    grid = Grid(
        arms=(SimulatedArm(text=own.name, strategy=own.name, settings=like.settings, times=own),),
        workers=tuple(workers),
        imbalances=(None,),
        networks=(like.links,),
        steps=like.steps,
        parameters=like.parameters,
        seed=like.seed,
        pace=None,
        compute=None,
        examples=like.examples,
        like=like,
    )
    grid.check()
    return list(simulated(grid, _Silent()))
