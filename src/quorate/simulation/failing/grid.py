"""The cases under failures: every strategy with every number of workers and learners, on every network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.inject.failures import Failures
from quorate.report.wording import counted
from quorate.simulation.failing.exchanges import Exchanges
from quorate.simulation.failing.playing import Goodput, Played
from quorate.simulation.failing.recovery import Recovery
from quorate.simulation.failing.schedule import failures_until
from quorate.simulation.failing.ways import Way
from quorate.simulation.links import Links

MOST_FAILURES = 5_000_000
"""Failures that are drawn for one number of workers: each takes some microseconds."""


@dataclass(frozen=True, kw_only=True)
class FailingArm:
    """One strategy; `text` is the argument."""

    text: str
    way: Way


@dataclass(frozen=True, kw_only=True)
class FailingRow:
    """One case with its result."""

    strategy: str
    workers: int
    learners: int
    network: str | None
    goodput: Goodput
    wall_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the row for `simulate.json`."""
        own = {"strategy": self.strategy, "workers": self.workers, "learners": self.learners, "network": self.network}
        return {**own, "wall_seconds": round(self.wall_seconds, 3), **self.goodput.as_json()}


@dataclass(frozen=True, kw_only=True)
class FailingGrid:
    """All cases; every list but the networks has at least one entry."""

    failures: Failures
    recovery: Recovery
    arms: Sequence[FailingArm]
    workers: Sequence[int]
    learners: Sequence[int]
    """For strategies that have learners."""
    networks: Sequence[Links]
    """None: exchanges cost nothing."""
    seconds: float
    step: float
    parameters: int
    seed: int

    def cases(self) -> Iterator[tuple[FailingArm, Links | None, Played]]:
        """Yield the cases in the order of the table."""
        for links in self.networks or (None,):
            for arm in self.arms:
                for learners in (1,) if arm.way.meets == "one learner" else self.learners:
                    for workers in self.workers:
                        case = Played(
                            way=arm.way,
                            workers=workers,
                            learners=learners,
                            seconds=self.seconds,
                            step=self.step,
                            failures=self.failures,
                            recovery=self.recovery,
                            exchanges=Exchanges(links, self.parameters),
                        )
                        yield arm, links, case

    def check(self) -> None:
        """Raise `ConfigurationError` for the first impossible case."""
        for _, _, case in self.cases():
            case.check()
        most = self.seconds / self.failures.between(max(self.workers))
        if most > MOST_FAILURES:
            raise ConfigurationError(
                f"in {self.seconds:,.0f} s there would be some {most:,.0f} failures among {max(self.workers):,} "
                f"workers, and at most {MOST_FAILURES:,} are simulated; give a shorter time after --seconds"
            )


def rows_of(grid: FailingGrid, begins: Callable[[int, int, str], object]) -> Iterator[FailingRow]:
    """Yield every case's row, one after the other. `begins` is called for each one with its number, the number of all,
    and a description."""
    schedules: Mapping[int, Any] = {
        workers: failures_until(grid.failures, workers, grid.seed, grid.seconds) for workers in grid.workers
    }
    cases = list(grid.cases())
    for number, (arm, links, case) in enumerate(cases):
        begins(number, len(cases), f"{arm.text}, {case.workers:,} workers, {counted(case.learners, 'learner')}")
        began = time.perf_counter()
        goodput = case.play(schedules[case.workers])
        yield FailingRow(
            strategy=arm.text,
            workers=case.workers,
            learners=case.learners,
            network=None if links is None else links.text,
            goodput=goodput,
            wall_seconds=time.perf_counter() - began,
        )
