"""A recorded run with more workers: times alone, under the strategy of the run."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.simulation.calibrated import calibrated
from quorate.simulation.grid import Grid, Row, SimulatedArm, SimulatedCell, simulated
from quorate.simulation.played import Watch


class _Silent:
    """No progress messages, as it takes a second or two."""

    def begins(self, number: int, of: int, cell: SimulatedCell) -> Watch:
        return lambda share: None


def more_workers(name: str, workers: Sequence[int]) -> list[Row]:
    """Return a row for each number of `workers`, like the run in the folder `name`.

    Further workers are like the recorded ones, in blocks of as many, and messages take as long as there. Raises
    `ConfigurationError` where a simulation cannot be calibrated by the run.
    """
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
