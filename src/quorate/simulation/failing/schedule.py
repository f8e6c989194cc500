"""One schedule of failures, drawn for many workers at once, and divided among learners of neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from quorate.core.draws import mixed
from quorate.inject.failures import STREAM, Failure, Failures
from quorate.simulation.failing.life import Stroke

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_AT_ONCE = 1 << 14


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


def failures_until(failures: Failures, workers: int, seed: int, seconds: float) -> list[Failure]:
    """Return the failures of `failures.schedule(workers, seed)` before `seconds`."""
    drawn_failures: list[Failure] = []
    between, now, number = failures.between(workers), 0.0, 0
    while now < seconds:
        draws = _Draws(seed, number)
        times, places, bursts, kinds, lengths = (draws.uniforms(place) for place in range(5))
        for drawn, place, burst, share, length in zip(times, places, bursts, kinds, lengths, strict=True):
            now += between * -math.log(drawn)
            if now >= seconds:
                break
            first = int(place * workers)
            ranks = range(first, first + 1)
            if burst < failures.bursts:
                begin = first // failures.together * failures.together
                ranks = range(begin, min(begin + failures.together, workers))
            drawn_failures.append(failures.struck(now, ranks, share, length))
        number += _AT_ONCE
    return drawn_failures


class _Draws:
    """The draws of the failures from number `first` on."""

    def __init__(self, seed: int, first: int) -> None:
        self._numbers = _mixed(np.uint64(mixed(STREAM, seed)), np.arange(first, first + _AT_ONCE, dtype=np.uint64))

    def uniforms(self, place: int) -> Sequence[float]:
        """Return the numbers of `quorate.core.draws.uniform`."""
        bits = _mixed(self._numbers, np.full(_AT_ONCE, place, dtype=np.uint64)) >> np.uint64(11)
        numbers: list[float] = np.minimum((bits.astype(np.float64) + 0.5) / 2**53, 1 - 2**-53).tolist()
        return numbers


def _mixed(state: NDArray[np.uint64] | np.uint64, number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one more number of `quorate.core.draws.mixed`; sums and products drop what exceeds 64 bits."""
    bits = number + state + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
