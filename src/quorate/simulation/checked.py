"""A recorded run compared with its simulation: the same strategy, workers and steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from quorate.report.figures.lateness import side_by_side
from quorate.report.reading.rounds import last_arrivals
from quorate.report.reading.run import RunRecords
from quorate.simulation.calibrated import Calibration
from quorate.simulation.figures import Figures, figures_of
from quorate.simulation.models import EveryStep
from quorate.simulation.played import Case, Formed, Played, Watch

WITHIN = 0.10
"""The largest relative error of a simulated figure."""
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
        """Whether the error is within the bound."""
        return abs(self.off) <= WITHIN

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `simulate.json`."""
        return {**asdict(self), "off": round(self.off, 6), "holds": self.holds}


def case_of(calibration: Calibration, watch: Watch = lambda share: None) -> Case:
    """Return the recorded run as a case to be simulated."""
    return Case(
        workers=calibration.workers,
        steps=calibration.steps,
        parameters=calibration.parameters,
        busy=calibration.busy,
        links=calibration.links,
        seed=calibration.seed,
        examples=calibration.examples,
        watch=watch,
    )


def recorded_figures(calibration: Calibration) -> Figures:
    """Return the figures of the run itself, from the time in which all its workers were active and warm."""
    played = played_from(calibration.run, has_means=isinstance(calibration.times, EveryStep))
    return figures_of(played, calibration.workers, calibration.steps)


def held_against(calibration: Calibration, simulated: Figures | None = None) -> tuple[Held, ...]:
    """Return rounds and steps per second, contributors and bytes of the run, each with its simulated value."""
    case = case_of(calibration)
    simulated_figures = simulated or figures_of(calibration.times.play(case), case.workers, case.steps)
    recorded = recorded_figures(calibration)
    pairs = {name: (getattr(recorded, field), getattr(simulated_figures, field)) for name, field in _HELD.items()}
    if not isinstance(calibration.times, EveryStep) and not calibration.run.merged():  # steps are no rounds
        del pairs["rounds per second"], pairs["contributors"]
    return tuple(
        Held(name=name, recorded=recorded_value, simulated=other)
        for name, (recorded_value, other) in pairs.items()
        if recorded_value is not None and other is not None
    )


def played_from(run: RunRecords, *, has_means: bool) -> Played:
    """Return the steps and rounds of `run`, on a clock that stops during evaluations. With `has_means` each step of all
    workers is a round where the records have none."""
    pauses = run.pauses

    def training(time: float) -> float:
        return time - pauses.before(time)

    steps = run.steps
    origin = min(own[0].begin for own in steps.values())
    merged = run.merged()
    latest = last_arrivals(merged)
    together = {} if merged else {n: max(s.arrive for s in there.values()) for n, there in side_by_side(steps).items()}
    played = Played()
    for rank, own in steps.items():
        for step in own:
            last = latest.get(step.round, step.arrive) if merged else together.get(step.step, step.arrive)
            times = (step.begin, step.arrive, last, min(step.end, step.arrive + step.encode + step.wait), step.end)
            played.step(rank, *(training(time) - training(origin) for time in times))
            played.bytes_out += step.bytes_out
    for merged_round in merged:
        ages: Counter[int] = Counter()
        for contributions in merged_round.round.taken.values():
            for age, count in contributions:
                ages[age] += count
        played.rounds.append(
            Formed(training(merged_round.formed) - training(origin), len(merged_round.round.taken), ages)
        )
    if not merged and has_means:
        for there in side_by_side(steps).values():
            time = training(min(step.end for step in there.values())) - training(origin)
            played.rounds.append(Formed(time, there[min(there)].contributors, {0: len(there)}))
    elif not merged:
        contributors = [step.contributors for own in steps.values() for step in own]
        played.contributors = sum(contributors) / len(contributors)
    return played
