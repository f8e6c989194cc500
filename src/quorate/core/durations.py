"""Seconds for every rank and step: constant, random, published, or read from a file; and their text form.

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

from quorate.core.draws import uniform
from quorate.core.errors import ConfigurationError, ranks_in_words
from quorate.core.quantities import factor_from, number_from, seconds_from
from quorate.core.registry import Registry
from quorate.core.text_files import text_of

Durations = Callable[[int, int], float]
"""(rank, step) -> seconds; steps count from 0."""
FORWARD_SHARE = 1 / 3
"""The part of a step's modelled compute time that is over when backward begins."""
_NORMAL = NormalDist()


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
        z = _NORMAL.inv_cdf(u)
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

    A name is one of the published batch times (`core.durations.traces`), which are drawn. A file holds one number of
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


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Published batch times of a real training, as a distribution to draw from; all in seconds, but for `sigma`.

    Published are the least, greatest and mean time of a batch, and the standard deviation. The shape is our own choice:
    the time above the least is lognormal, cut off at the greatest. Its two parameters are those with exactly the
    published mean and deviation. With T = greatest − least, Φ the normal distribution function and X lognormal with
    parameters μ and σ,

        E[X^k | X < T] = exp(kμ + k²σ²/2) Φ((ln T − μ)/σ − kσ) / Φ((ln T − μ)/σ),    k = 1, 2,

    solved once by bisection; `exp(μ)` and σ are kept below.
    """

    least: float
    greatest: float
    mean: float
    deviation: float
    scale: float
    """exp(μ): the median above `least`, if nothing were cut off."""
    sigma: float

    def quantile(self, u: float) -> float:
        """The time that a share `u` of all batches stays below; `u` is strictly between 0 and 1."""
        kept = _NORMAL.cdf(math.log((self.greatest - self.least) / self.scale) / self.sigma)
        above = self.scale * math.exp(self.sigma * _NORMAL.inv_cdf(u * kept))
        return min(self.least + above, self.greatest)


@dataclass(frozen=True)
class Batches:
    """Independent draws of `times` for each rank and step, fixed by `seed`, all multiplied by `factor`; seconds."""

    times: BatchTimes
    seed: int = 0
    factor: float = 1.0

    @property
    def least(self) -> float:
        """Lower bound of all draws."""
        return self.times.least * self.factor

    def __call__(self, rank: int, step: int) -> float:
        return self.times.quantile(uniform(self.seed, rank, step)) * self.factor


UCF101_LSTM = BatchTimes(
    least=0.201, greatest=3.410, mean=1.235, deviation=0.706, scale=0.912295052661, sigma=0.857412820782
)
"""Minibatches of an LSTM on UCF101 videos: 201 to 3,410 ms, mean 1,235, standard deviation 706.

The work of a batch grows with its longest video: a large imbalance that comes from the data. Only these four numbers
are published; the shape of the distribution is our choice.
"""

WMT16_TRANSFORMER = BatchTimes(
    least=0.179, greatest=3.482, mean=0.475, deviation=0.144, scale=0.266173356953, sigma=0.460894561532
)
"""Minibatches of a Transformer on WMT16 sentences: 179 to 3,482 ms, mean 475, standard deviation 144.

The work of a batch grows with the length of its sentences: a mild imbalance with rare outliers that comes from the
data. Only these four numbers are published; the shape of the distribution is our choice.
"""

CLOUD_RESNET50 = BatchTimes(
    least=0.399, greatest=1.892, mean=0.454, deviation=0.116, scale=0.018060542698, sigma=1.562074628092
)
"""Minibatches of 256 images, ResNet-50 on two V100 GPUs in a cloud: 399 to 1,892 ms, mean 454, standard deviation 116.

All batches have equal work: the imbalance comes from the machines. Only these four numbers are published; the shape of
the distribution, in which most batches take hardly longer than the minimum, is our choice.
"""

traces: Registry[BatchTimes] = Registry(
    "trace",
    {
        "ucf101-lstm": "quorate.core.durations:UCF101_LSTM",
        "wmt16-transformer": "quorate.core.durations:WMT16_TRANSFORMER",
        "cloud-resnet50": "quorate.core.durations:CLOUD_RESNET50",
    },
)
