"""A recorded run in the columns of a simulated one, so that both have the same figures."""

from __future__ import annotations

from collections import Counter

from quorate.report.figures.lateness import side_by_side
from quorate.report.reading.rounds import last_arrivals
from quorate.report.reading.run import RunRecords
from quorate.simulation.played import Formed, Played


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
