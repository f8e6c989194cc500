"""Seconds for every rank and step: constant, random, or read from a file; and their text form.

Used for the compute times of the virtual world and for the delays that are injected into training. Random numbers are
counter-based, so the same seed gives the same seconds on every worker, in any order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from quorate.core.batch_times import Batches, traces
from quorate.core.draws import uniform
from quorate.core.errors import ConfigurationError, ranks_in_words
from quorate.core.quantities import factor_from, number_from, seconds_from
from quorate.core.text_files import text_of

Durations = Callable[[int, int], float]
"""(rank, step) -> seconds; steps count from 0."""
FORWARD_SHARE = 1 / 3
"""The part of a step's modelled compute time that is over when backward begins."""


@dataclass(frozen=True)
class Constant:
    """Equal `seconds` in every step of every worker."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)

    def __call__(self, rank: int, step: int) -> float:
        return self.seconds


@dataclass(frozen=True)
class Sampled:
    """Independent draws for each rank and step, fixed by `seed`.

    normal: mean `a`, standard deviation `b`, cut off at 0. lognormal: median `a`, standard deviation of the logarithm
    `b`. uniform: from `a` to `b`. All in seconds, but for lognormal's `b`.
    """

    distribution: Literal["normal", "lognormal", "uniform"]
    a: float
    b: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_seconds(self.a)
        _check_seconds(self.b)
        if self.distribution not in ("normal", "lognormal", "uniform"):
            raise ConfigurationError(f'unknown distribution "{self.distribution}". Known: lognormal, normal, uniform.')
        if self.distribution == "uniform" and self.b < self.a:
            raise ConfigurationError(f"uniform needs a smaller and then a greater number, not {self.a} and {self.b}")

    def __call__(self, rank: int, step: int) -> float:
        u = uniform(self.seed, rank, step)
        if self.distribution == "uniform":
            return self.a + (self.b - self.a) * u
        z = NormalDist().inv_cdf(u)
        return max(0.0, self.a + self.b * z) if self.distribution == "normal" else self.a * math.exp(self.b * z)


@dataclass(frozen=True)
class Trace:
    """Measured seconds, step by step, repeated from the start: one list for all ranks, or one per rank."""

    seconds: Sequence[float] | Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        lists = self.seconds.values() if isinstance(self.seconds, Mapping) else [self.seconds]
        for times in lists:
            if not times:
                raise ConfigurationError("a trace of times needs at least one number")
            for time in times:
                _check_seconds(time)

    def __call__(self, rank: int, step: int) -> float:
        if not isinstance(self.seconds, Mapping):
            return self.seconds[step % len(self.seconds)]
        if rank not in self.seconds:
            raise ConfigurationError(f"the trace has no times of rank {rank}, only of {ranks_in_words(self.seconds)}")
        return self.seconds[rank][step % len(self.seconds[rank])]

    def check_ranks(self, size: int) -> None:
        """Raise `ConfigurationError` if there are no times of some rank below `size`."""
        for rank in range(size):
            self(rank, 0)

    def scaled(self, factor: float) -> Trace:
        """Return the same trace with all times multiplied."""
        if isinstance(self.seconds, Mapping):
            return Trace({rank: [time * factor for time in times] for rank, times in self.seconds.items()})
        return Trace([time * factor for time in self.seconds])


def parse_sampled(text: str, *, seed: int) -> Sampled | None:
    """Parse `normal:10ms:2ms`, `lognormal:10ms:0.5` or `uniform:5ms:20ms`; None where `text` has none of these forms.

    Raises `ConfigurationError` where it has one, with wrong numbers.
    """
    match text.split(":"):
        case [("normal" | "uniform") as name, a, b]:
            return Sampled(name, seconds_from(a, text), seconds_from(b, text), seed)
        case ["lognormal", median, sigma]:
            return Sampled("lognormal", seconds_from(median, text), number_from(sigma, text), seed)
    return None


def parse_trace(text: str, *, seed: int) -> Batches | Trace | None:
    """Parse `trace:FILE` or `trace:NAME`, also with a factor behind (`:x0.1`); None where `text` is neither.

    A name is one of the published batch times (`core.batch_times.traces`), which are drawn. A file holds one number of
    seconds a line, or JSON lines with `seconds` and, where ranks differ, `rank`. Raises `ConfigurationError` where the
    file is wrong, or there is none of this name.
    """
    kind, _, place = text.partition(":")
    if kind != "trace" or not place:
        return None
    name, colon, tail = place.rpartition(":")
    has_factor = bool(colon) and tail.lstrip().startswith("x") and (name in traces or not Path(place).exists())
    name, factor = (name, factor_from(tail, text)) if has_factor else (place, 1.0)
    if name in traces:
        return Batches(traces.get(name), seed, factor)
    trace = _read(Path(name))
    return trace if factor == 1.0 else trace.scaled(factor)


def _read(path: Path) -> Trace:
    try:
        lines = text_of(path, "the trace").splitlines()
    except FileNotFoundError:
        known = ", ".join(traces.names())
        raise ConfigurationError(f"there is no file {path}, and no trace of this name. Known: {known}.") from None
    shared: list[float] = []
    by_rank: dict[int, list[float]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            entry = value if isinstance(value, dict) else {"seconds": value}
            times = by_rank.setdefault(int(entry["rank"]), []) if "rank" in entry else shared
            times.append(float(entry["seconds"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise ConfigurationError(
                f'line {number} of the trace {path} is neither a number nor {{"seconds": ..., "rank": ...}}: {line!r}'
            ) from None
    if shared and by_rank:
        raise ConfigurationError(
            f"the trace {path} has lines with and without a rank; give a rank in all lines or in none"
        )
    return Trace(by_rank or shared)


def _check_seconds(seconds: float) -> None:
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ConfigurationError(f"times must be finite and at least 0, not {seconds!r}")
