"""A recorded run held against its simulation: the same strategy, workers and steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quorate.simulation.calibrated import Calibration
from quorate.simulation.figures import Figures, figures_of
from quorate.simulation.models import EveryStep
from quorate.simulation.played import Case, Watch
from quorate.simulation.recorded import played_from

WITHIN = 0.10
"""By which share a simulated figure may be off."""
_HELD = {
    "rounds per second": "rounds_per_second",
    "steps per second": "steps_per_second",
    "contributors": "contributors",
    "bytes per step": "bytes_per_step",
}


@dataclass(frozen=True, kw_only=True)
class Held:
    """One figure, recorded and simulated."""

    name: str
    recorded: float
    simulated: float

    @property
    def off(self) -> float:
        """Simulated over recorded, minus 1."""
        return self.simulated / self.recorded - 1.0 if self.recorded else 0.0 if not self.simulated else 1.0

    @property
    def holds(self) -> bool:
        """Whether it is within the bound."""
        return abs(self.off) <= WITHIN

    def as_json(self) -> dict[str, Any]:
        """For `simulate.json`."""
        return {**asdict(self), "off": round(self.off, 6), "holds": self.holds}


def case_of(found: Calibration, watch: Watch = lambda share: None) -> Case:
    """The recorded run, to be simulated."""
    return Case(
        workers=found.workers,
        steps=found.steps,
        parameters=found.parameters,
        busy=found.busy,
        links=found.links,
        seed=found.seed,
        examples=found.examples,
        watch=watch,
    )


def recorded_figures(found: Calibration) -> Figures:
    """Those of the run itself, of the stretch in which all its workers were at work and warm."""
    played = played_from(found.run, has_means=isinstance(found.times, EveryStep))
    return figures_of(played, found.workers, found.steps)


def held_against(found: Calibration, simulated: Figures | None = None) -> tuple[Held, ...]:
    """Rounds and steps per second, contributors and bytes of the run, each with what a simulation says."""
    case = case_of(found)
    told = simulated or figures_of(found.times.play(case), case.workers, case.steps)
    recorded = recorded_figures(found)
    pairs = {name: (getattr(recorded, field), getattr(told, field)) for name, field in _HELD.items()}
    if not isinstance(found.times, EveryStep) and not found.run.merged():  # steps are no rounds
        del pairs["rounds per second"], pairs["contributors"]
    return tuple(
        Held(name=name, recorded=one, simulated=other)
        for name, (one, other) in pairs.items()
        if one is not None and other is not None
    )
