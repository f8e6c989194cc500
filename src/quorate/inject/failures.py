"""Failures of workers, described in one line of text by rate, kind and duration, and a schedule drawn from it.

    mtbf=30s,repair=5s,restart=2s,stop=0.2:3s,slow=0.1:x4:5s,burst=0.1:8

key                meaning
mtbf=30s           mean time between failures of one worker; exponential, and independent of other workers
repair=5s          from a death until another worker may start in its place (0)
restart=2s         from then until that worker trains (0)
stop=0.2:3s        the share of failures in which a worker is silent for a time and then goes on; its mean, exponential
slow=0.1:x4:5s     the share in which it takes so many times as long for a time; its mean, exponential
burst=0.1:8        the share of failures that strike a host, or a rack, of so many ranks at once

Failures that are neither stops nor slow times are deaths. All are drawn by counting from the seed, so a simulation and
a run on real processes have the same schedule.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.draws import uniform
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import factor_from, number_from, seconds_from

KEYS = ("mtbf", "repair", "restart", "stop", "slow", "burst")
FORMS = "mtbf=30s,repair=5s,restart=2s,stop=0.2:3s,slow=0.1:x4:5s,burst=0.1:8 (all but mtbf may be left out)"

Kind = Literal["death", "stop", "slow"]
STREAM = zlib.crc32(b"failures")


@dataclass(frozen=True)
class Failure:
    """One event of a schedule."""

    time: float
    """Seconds since the training began."""
    ranks: range
    """The ranks that it strikes: one worker, or, in a burst, neighbours."""
    kind: Kind
    seconds: float
    """Duration: of a death until its repair, of a stop or a slow time until its end."""
    factor: float = 1.0
    """The factor by which a step takes longer in a slow time."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The failures of workers. Times in seconds; `text` is the line that was read."""

    mtbf: float
    repair: float = 0.0
    restart: float = 0.0
    stops: float = 0.0
    stop: float = 0.0
    slows: float = 0.0
    factor: float = 1.0
    slow: float = 0.0
    bursts: float = 0.0
    together: int = 1
    text: str = ""

    def __post_init__(self) -> None:
        if not self.mtbf > 0:
            raise ConfigurationError(f"mtbf is {self.mtbf:g} s; it must be above 0")
        for name, share in (("stop", self.stops), ("slow", self.slows), ("burst", self.bursts)):
            if not 0 <= share <= 1:
                raise ConfigurationError(f"the share of {name} is {share:g}; it must be from 0 to 1")
        if self.stops + self.slows > 1:
            raise ConfigurationError(
                f"stop and slow are {self.stops:g} and {self.slows:g} of all failures, more than all of them together"
            )
        if self.together < 1:
            raise ConfigurationError(f"a burst strikes {self.together} ranks; it must be 1 or more")
        if self.factor < 1:
            raise ConfigurationError(f"a slow worker takes x{self.factor:g} as long; it must be x1 or more")

    @property
    def kills(self) -> bool:
        """Whether some of them are deaths."""
        return self.stops + self.slows < 1

    def schedule(self, workers: int, seed: int) -> Iterator[Failure]:
        """Yield failures of the ranks 0 to `workers` - 1, in order of time, without end.

        Callers skip failures of dead workers. Each rank is struck once in `mtbf` seconds on average, bursts included:
        these are rarer in proportion to their size.
        """
        between, now, number = self.between(workers), 0.0, 0
        while True:
            draw = _Draws(seed, number)
            now += between * draw.exponential(0)
            first = int(draw.uniform(1) * workers)
            ranks = range(first, first + 1)
            if draw.uniform(2) < self.bursts:
                begin = first // self.together * self.together
                ranks = range(begin, min(begin + self.together, workers))
            yield self.struck(now, ranks, draw.uniform(3), draw.uniform(4))
            number += 1

    def between(self, workers: int) -> float:
        """Return the mean seconds between two failures among `workers`."""
        return self.mtbf * (1 + self.bursts * (min(self.together, workers) - 1)) / workers

    def struck(self, time: float, ranks: range, kind: float, length: float) -> Failure:
        """Return the failure for drawn numbers `kind` and `length`, both between 0 and 1."""
        if kind < self.stops:
            return Failure(time, ranks, "stop", self.stop * -math.log(length))
        if kind < self.stops + self.slows:
            return Failure(time, ranks, "slow", self.slow * -math.log(length), self.factor)
        return Failure(time, ranks, "death", self.repair)


@dataclass(frozen=True)
class _Draws:
    seed: int
    number: int

    def uniform(self, place: int) -> float:
        return uniform(STREAM, self.seed, self.number, place)

    def exponential(self, place: int) -> float:
        return -math.log(self.uniform(place))


def failures_from(text: str) -> Failures:
    """Return the failures that a line of text describes. Raises `ConfigurationError`, which names what is wrong in
    it."""
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    for part in text.split(","):
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or key not in KEYS:
            raise ConfigurationError(f'"{part.strip()}" in "{text}" is not a failure; write {FORMS}')
        if key in seen:
            raise ConfigurationError(f'{key} appears twice in "{text}"; write it once')
        seen.add(key)
        settings |= _values(key, value, text)
    if "mtbf" not in settings:
        raise ConfigurationError(f'"{text}" lacks mtbf, the mean time between failures of one worker')
    return Failures(text=text, **settings)


def _values(key: str, value: str, text: str) -> dict[str, Any]:
    match key, value.split(":"):
        case "mtbf" | "repair" | "restart", [duration]:
            return {key: seconds_from(duration, text)}
        case "stop", [share, mean]:
            return {"stops": number_from(share, text), "stop": seconds_from(mean, text)}
        case "slow", [share, factor, mean]:
            times = factor_from(factor, text)
            return {"slows": number_from(share, text), "factor": times, "slow": seconds_from(mean, text)}
        case "burst", [share, ranks] if ranks.strip().isdecimal():
            return {"bursts": number_from(share, text), "together": int(ranks)}
    raise ConfigurationError(f'"{key}={value}" in "{text}" is not complete; write {FORMS}')


class SlowTimes:
    """Factors by which the steps of `rank` take longer, by the clock; cost: some microseconds a step.

    `began` returns the time 0 of the schedule, None while it has not begun. Failures before this worker's first step
    are skipped. Where slow times overlap, the greatest factor counts.
    """

    def __init__(
        self, failures: Failures, workers: int, seed: int, rank: int, began: Callable[[], float | None]
    ) -> None:
        self._schedule, self._rank, self._ask = failures.schedule(workers, seed), rank, began
        self._next = next(self._schedule)
        self._began: float | None = None
        self._came: float | None = None
        self._now: list[tuple[float, float]] = []
        """The end and the factor of each current slow time."""

    def factor(self, now: float) -> float:
        """Return the factor of a step in progress; 1 outside slow times."""
        if self._came is None:
            self._came = now
        if self._began is None:
            self._began = self._ask()
        if self._began is None:
            return 1.0
        while (at := self._began + self._next.time) <= now:
            if self._next.kind == "slow" and self._rank in self._next.ranks and at >= self._came:
                self._now.append((at + self._next.seconds, self._next.factor))
            self._next = next(self._schedule)
        self._now = [(until, factor) for until, factor in self._now if until > now]
        return max((factor for _, factor in self._now), default=1.0)
