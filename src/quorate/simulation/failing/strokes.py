"""One schedule of failures for all workers, divided among learners: neighbours belong to one learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from quorate.inject.failures import Failure
from quorate.simulation.failing.life import Stroke


@dataclass(frozen=True)
class Learners:
    """`count` learners of `workers` workers, as equal as possible; the first ones have one worker more."""

    workers: int
    count: int

    def size(self, learner: int) -> int:
        """Return the number of its workers."""
        each, over = divmod(self.workers, self.count)
        return each + (learner < over)

    def of(self, rank: int) -> tuple[int, int]:
        """Return the learner of `rank`, and that learner's first rank."""
        each, over = divmod(self.workers, self.count)
        larger = over * (each + 1)
        if rank < larger:
            learner = rank // (each + 1)
            return learner, learner * (each + 1)
        learner = over + (rank - larger) // each
        return learner, larger + (learner - over) * each

    def _parts(self, ranks: range) -> Iterator[tuple[int, range]]:
        rank = ranks.start
        while rank < ranks.stop:
            learner, first = self.of(rank)
            end = min(ranks.stop, first + self.size(learner))
            yield learner, range(rank - first, end - first)
            rank = end

    def divided(self, failures: Iterable[Failure]) -> Mapping[int, list[Stroke]]:
        """Return the failures of each learner, without learners that have none."""
        strokes: dict[int, list[Stroke]] = {}
        for failure in failures:
            for learner, ranks in self._parts(failure.ranks):
                strokes.setdefault(learner, []).append(
                    Stroke(failure.time, ranks, failure.kind, failure.seconds, failure.factor)
                )
        return strokes


@dataclass(frozen=True)
class Struck:
    """Numbers of failures."""

    deaths: int
    stops: int
    slows: int
    bursts: int
    """Failures among them that struck several workers at once."""
    workers: int
    """Workers struck, counted each time."""


def until(failures: Iterable[Failure], seconds: float) -> list[Failure]:
    """Return the failures of the first so many seconds."""
    return list(takewhile(lambda failure: failure.time < seconds, failures))


def counted(failures: Iterable[Failure]) -> Struck:
    """Return the number of each kind."""
    kinds = {"death": 0, "stop": 0, "slow": 0}
    bursts = workers = 0
    for failure in failures:
        kinds[failure.kind] += 1
        bursts += len(failure.ranks) > 1
        workers += len(failure.ranks)
    return Struck(kinds["death"], kinds["stop"], kinds["slow"], bursts, workers)
