"""How long the virtual workers compute: models of the time of one training step, and their names.

A model is any function of (rank, step) that returns seconds. It is asked once a step, and what it answers may not
depend on the schedule: the distributions here are drawn by counting, so the same seed gives the same times.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.mixing import uniform

ComputeModel = Callable[[int, int], float]
"""Seconds that a step takes: (rank, step) -> seconds; steps count from 0."""

FORMS = "constant:10ms, normal:10ms:2ms, lognormal:10ms:0.5, uniform:5ms:20ms or trace:FILE"
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class Constant:
    """Every step of every worker takes `seconds`."""

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
            raise ConfigurationError(f"uniform is from a smaller to a greater number, not from {self.a} to {self.b}")

    def __call__(self, rank: int, step: int) -> float:
        u = uniform(self.seed, rank, step)
        if self.distribution == "uniform":
            return self.a + (self.b - self.a) * u
        z = NormalDist().inv_cdf(u)
        return max(0.0, self.a + self.b * z) if self.distribution == "normal" else self.a * math.exp(self.b * z)


@dataclass(frozen=True)
class Formula:
    """What a function of the user's own says."""

    function: ComputeModel

    def __call__(self, rank: int, step: int) -> float:
        return self.function(rank, step)


@dataclass(frozen=True)
class Trace:
    """Measured seconds, step by step, from the start again when they are used up: one list for all, or one a rank."""

    seconds: Sequence[float] | Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        lists = self.seconds.values() if isinstance(self.seconds, Mapping) else [self.seconds]
        for times in lists:
            if not times:
                raise ConfigurationError("a trace of compute times has at least one number")
            for time in times:
                _check_seconds(time)

    def __call__(self, rank: int, step: int) -> float:
        if not isinstance(self.seconds, Mapping):
            return self.seconds[step % len(self.seconds)]
        if rank not in self.seconds:
            raise ConfigurationError(f"the trace has no compute times of rank {rank}, only of {sorted(self.seconds)}")
        return self.seconds[rank][step % len(self.seconds[rank])]


def parse_compute(text: str, *, seed: int = 0) -> ComputeModel:
    """The model that `text` names on the command line: one of the `FORMS`. Raises `ConfigurationError`."""
    kind, _, rest = text.partition(":")
    values = rest.split(":") if rest else []
    match kind, values:
        case "constant", [seconds]:
            return Constant(_seconds(seconds, text))
        case ("normal" | "uniform") as name, [a, b]:
            return Sampled(name, _seconds(a, text), _seconds(b, text), seed)
        case "lognormal", [median, sigma]:
            return Sampled("lognormal", _seconds(median, text), _number(sigma, text), seed)
        case "trace", [_, *_]:
            return _read_trace(Path(rest))
    raise ConfigurationError(f'"{text}" is no model of compute times; write {FORMS}')


def _seconds(text: str, whole: str) -> float:
    found = re.fullmatch(r"([0-9.eE+-]+?)\s*(us|ms|s|)", text.strip())
    if found is None:
        raise ConfigurationError(f'"{text}" in "{whole}" is no time; write 0.01, 10ms, 500us or 2s')
    return _number(found[1], whole) * _UNITS[found[2]]


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f'"{text}" in "{whole}" is no number') from None


def _read_trace(path: Path) -> Trace:
    """One number a line, or JSON lines with `seconds` and, where ranks differ, `rank`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"the trace {path} cannot be read: {error.strerror}") from None
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
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError(
                f'line {number} of the trace {path} is neither a number nor {{"seconds": ..., "rank": ...}}: {line!r}'
            ) from None
    if shared and by_rank:
        raise ConfigurationError(f"the trace {path} has lines with and without a rank; write all or none with one")
    return Trace(by_rank or shared)


def _check_seconds(seconds: float) -> None:
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ConfigurationError(f"compute times are finite numbers from 0 on, not {seconds!r}")
