"""Published batch times: how long minibatches took in some real trainings, as distributions to draw from.

Each has a published least, greatest and mean time of a batch, and standard deviation. The shape is our own choice:
the time above the least is lognormal, cut off at the greatest. Its two parameters are those with
exactly the published mean and deviation. With T = greatest − least, Φ the normal distribution function and X lognormal
with parameters μ and σ,

    E[X^k | X < T] = exp(kμ + k²σ²/2) Φ((ln T − μ)/σ − kσ) / Φ((ln T − μ)/σ),    k = 1, 2,

solved once by bisection; `exp(μ)` and σ are kept below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from quorate.core.draws import uniform
from quorate.core.registry import Registry

_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """One distribution of batch times; all in seconds, but for `sigma`."""

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

The work of a batch grows with its longest video: imbalance that lies in the data, and is wide. Only these four numbers
are published; the shape of the distribution is our own choice.
"""

WMT16_TRANSFORMER = BatchTimes(
    least=0.179, greatest=3.482, mean=0.475, deviation=0.144, scale=0.266173356953, sigma=0.460894561532
)
"""Minibatches of a Transformer on WMT16 sentences: 179 to 3,482 ms, mean 475, standard deviation 144.

The work of a batch grows with its sentences: imbalance that lies in the data, mild, with rare outliers. Only these four
numbers are published; the shape of the distribution is our own choice.
"""

CLOUD_RESNET50 = BatchTimes(
    least=0.399, greatest=1.892, mean=0.454, deviation=0.116, scale=0.018060542698, sigma=1.562074628092
)
"""Minibatches of 256 images, ResNet-50 on two V100 of a cloud: 399 to 1,892 ms, mean 454, standard deviation 116.

Every batch is the same work: imbalance that comes from the machines. Only these four numbers are published; the shape
of the distribution, in which most batches take hardly longer than the least, is our own choice.
"""

traces: Registry[BatchTimes] = Registry(
    "trace",
    {
        "ucf101-lstm": "quorate.core.batch_times:UCF101_LSTM",
        "wmt16-transformer": "quorate.core.batch_times:WMT16_TRANSFORMER",
        "cloud-resnet50": "quorate.core.batch_times:CLOUD_RESNET50",
    },
)
