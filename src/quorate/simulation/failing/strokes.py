"""One schedule of failures for all workers, divided among learners: neighbours belong to one learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from quorate.inject.failures import Failure
from quorate.simulation.failing.life import Stroke


@dataclass(frozen=True)
class Learners:
    """`count` learners of `workers` workers, as equal as can be; the first ones have the workers that are left over."""

    workers: int
    count: int

    def size(self, learner: int) -> int:
        """How many workers it has."""
        each, over = divmod(self.workers, self.count)
        return each + (learner < over)

    def of(self, rank: int) -> tuple[int, int]:
        """The learner of `rank`, and that learner's first rank."""
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
        """What strikes whom; learners that nothing strikes are left out."""
        found: dict[int, list[Stroke]] = {}
        for one in failures:
            for learner, ranks in self._parts(one.ranks):
                found.setdefault(learner, []).append(Stroke(one.time, ranks, one.kind, one.seconds, one.factor))
        return found


@dataclass(frozen=True)
class Struck:
    """How many failures there were."""

    deaths: int
    stops: int
    slows: int
    bursts: int
    """Of these, those that struck several workers at once."""
    workers: int
    """Workers struck, counted each time."""


def until(failures: Iterable[Failure], seconds: float) -> list[Failure]:
    """Those of the first so many seconds."""
    return list(takewhile(lambda one: one.time < seconds, failures))


def counted(failures: Iterable[Failure]) -> Struck:
    """How many of each kind."""
    kinds = {"death": 0, "stop": 0, "slow": 0}
    bursts = workers = 0
    for one in failures:
        kinds[one.kind] += 1
        bursts += len(one.ranks) > 1
        workers += len(one.ranks)
    return Struck(kinds["death"], kinds["stop"], kinds["slow"], bursts, workers)
