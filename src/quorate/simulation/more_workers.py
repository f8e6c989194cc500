"""A recorded run with more workers than it had: times alone, under the strategy of the run."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.simulation.calibrated import calibrated
from quorate.simulation.grid import Grid, Row, SimulatedArm, SimulatedCell, simulated
from quorate.simulation.played import Watch


class _Untold:
    """It takes a second or two, and nobody need be told how far it is."""

    def begins(self, number: int, of: int, cell: SimulatedCell) -> Watch:
        return lambda share: None


def more_workers(name: str, workers: Sequence[int]) -> list[Row]:
    """A row for each number of `workers`, like the run in the folder `name`; those beyond the recorded ones are like
    them, in blocks of as many, and a message takes what it took there.

    Raises `ConfigurationError` where the run is none that times alone can learn from.
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
    return list(simulated(grid, _Untold()))
