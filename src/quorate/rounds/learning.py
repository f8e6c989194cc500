"""Whether a training learns worse than it could while gradients are late: a pure function of its losses. No torch.

Late gradients may do harm in two ways, both seen in the training loss, over windows of at least `WINDOW` steps:

- it has risen: the median loss of both newest windows is more than `WORSE` times that of the best one before them, and
  the mean of its logarithm is above by more than `BEYOND` standard errors; or it is finite no more. A loss that goes up
  and comes back by itself may do so again: the rise is held against how far the means of windows have wandered so far,
  and so is what the training had learnt before it, as a loss that only wanders has a best window, too. Windows at a
  lower learning rate are not compared with, so that a rate that goes up again, as in cycles, is no harm. A loss that
  was ever below 0 has no factor, and only counts where it becomes infinite;
- it swings: what is left of its logarithm, less the trend of a window, comes back after 5 to 11 steps and is away half
  a period before and after. Batches drawn by chance do not, and a loss that wanders by itself goes along with itself
  the less, the more steps are between. Damping fails so where the optimizer that all share keeps a momentum of late
  gradients, and it is looked for only there.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

WINDOW = 32
"""Losses in a window at least; a window is never less than one in so many of all steps, so that there are few."""
WORSE = 2.0
"""The factor by which a loss has to have risen."""
BEYOND = 4.0
"""Standard errors by which it has to have risen."""
BEHIND = 3.0
"""What a loss falls by, within some windows, where a training is about to leave its swings behind."""
LATE = 0.05
"""Rounds by which gradients have to be late in the mean."""
_OF_ALL = 0.01
"""What a rise has to be at least, of the loss that the training began with."""
_SAME_RATE = 0.9
"""The share of a learning rate from which on another one counts as no lower."""
_AGAIN = 2.0
"""What a rise has to be at least, of the greatest one that the loss has come back from (both of the logarithm)."""
_UNKNOWN = 0.3
"""How far the logarithm of a loss wanders from window to window, as far as nothing is known of it."""
_WANDERS = 5.0
"""What a rise has to be at least, of how far the loss wanders."""
_CLEAR = 10.0
"""What the loss has to have fallen by before it rose, or has to be above all that was before its best, of the same."""
_TINY = 1e-9
"""The least loss that is looked at, of the one that the training began with."""
_NO_END = 8
"""Steps in a row in which the loss is not finite."""
_POOLED = 64
"""Windows at most in which a swing is looked for;"""
_ENOUGH = 128
"""steps at least."""
_ALONG = 0.25
"""The correlation of a loss with the one before it, from which on it is more than chance, in few windows;"""
_ALONG_SWING = 0.3
"""in all that there are."""
_PERIODS = range(5, 11 + 1)
"""Steps after which a loss that swings may come back. Longer ones are too few in a window."""
_LAGS = 16
"""One and a half of the longest period."""
_COMES_BACK = 4.5
"""Standard errors of a correlation by which it has to come back: the greatest of many that are looked at."""
_SWING = 0.22
"""The least standard deviation of what swings, of the logarithm."""


@dataclass(frozen=True)
class Swing:
    """How the logarithm of some losses goes up and down around their trend."""

    square: float
    products: tuple[float, ...]
    """The sums of products of each with the next, with the one after that, and so on."""
    count: int
    windows: int = 1

    @property
    def along(self) -> float:
        """The sum of products of each with the next."""
        return self.products[0]

    @property
    def deviation(self) -> float:
        """The standard deviation of what swings: not of what batches drawn by chance do to single losses."""
        return math.sqrt(max(0.0, self.along) / self.count) if self.count else 0.0

    @property
    def error(self) -> float:
        """The squared standard error of their mean; one that goes along with the next says less than another."""
        if self.count < 3 or not self.square > 0:
            return 0.0
        along = min(max(self.along / self.square, 0.0), 0.95)
        return self.square / (self.count - 2) / self.count * (1 + along) / (1 - along)

    @property
    def comes_back(self) -> bool:
        """Whether it goes along with itself a period later, and not half a period before and after that."""
        if self.count < _ENOUGH or self.along < _ALONG_SWING * self.square or self.deviation < _SWING:
            return False
        mean = self.square / self.count
        along = [x / (self.count - lag * self.windows) / mean for lag, x in enumerate(self.products, 1)]
        beyond = max(along[k - 1] - (along[k // 2 - 1] + along[3 * k // 2 - 1]) / 2 for k in _PERIODS)
        return beyond * math.sqrt(self.count) > _COMES_BACK

    @staticmethod
    def of(losses: Sequence[float], lags: int = 1) -> Swing:
        """Losses above 0, in order; where one is not, nothing is known."""
        if len(losses) < 3 or not all(0 < loss < math.inf for loss in losses):
            return Swing(0.0, (0.0,) * lags, 0, 0)
        logs = [math.log(loss) for loss in losses]
        trend = statistics.linear_regression(range(len(logs)), logs)
        left = [x - trend.intercept - trend.slope * t for t, x in enumerate(logs)]
        products = (sum(map(mul, left, left[lag:])) for lag in range(1, lags + 1))
        return Swing(sum(x * x for x in left), tuple(products), len(left))

    @staticmethod
    def total(some: Sequence[Swing]) -> Swing:
        """Of all that are known."""
        products = tuple(map(sum, zip(*(s.products for s in some), strict=True))) or (0.0,)
        return Swing(sum(s.square for s in some), products, sum(s.count for s in some), sum(s.windows for s in some))

    @staticmethod
    def pooled(some: Sequence[Swing]) -> float:
        """The standard deviation of what swings; 0 where it is no more than chance, or one of them is not known."""
        total = Swing.total(some)
        if not all(one.count for one in some) or not total.square > 0 or total.along < _ALONG * total.square:
            return 0.0
        return total.deviation if total.deviation > _SWING else 0.0


@dataclass(frozen=True)
class Stretch:
    """Some steps in a row."""

    end: int
    """The last one."""
    median: float
    """Of their losses."""
    mean: float
    """Of the logarithm."""
    late: float
    """Rounds by which gradients were late in the mean."""
    rates: tuple[float, float, float]
    """The least, the mean and the greatest learning rate."""
    swing: Swing

    def is_like(self, later: Stretch) -> bool:
        """Whether the learning rate was as high here as later."""
        return self.rates[1] >= _SAME_RATE * later.rates[1]

    def is_steady(self, later: Stretch) -> bool:
        """Whether the learning rate was the same here and there, all the time."""
        return min(self.rates[0], later.rates[0]) >= _SAME_RATE * max(self.rates[2], later.rates[2])

    def is_above(self, other: Stretch) -> bool:
        """By the factor, and beyond chance."""
        beyond = BEYOND * math.sqrt(self.swing.error + other.swing.error)
        return self.median > WORSE * other.median and self.mean - other.mean > beyond


@dataclass(frozen=True)
class Harm:
    """What is wrong."""

    what: str
    """As a sentence begins."""
    late: float
    """Rounds by which gradients were late in the mean."""


@dataclass
class Learning:
    """How one training goes."""

    looks_for_swings: bool = False
    steps: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    _losses: list[float] = field(default_factory=list)
    _rates: list[float] = field(default_factory=list)
    _late: float = 0.0
    _gradients: int = 0
    _endless: int = 0
    """Steps in a row in which the loss was not finite."""
    _is_positive: bool = True

    def round(self, late: float, gradients: int) -> None:
        """One has come with so many gradients, late by so many rounds in all."""
        self._late += late
        self._gradients += gradients

    def step(self, loss: float, rate: float = 1.0) -> Harm | None:
        """One was made; what is wrong from it on, if anything is. Cost: some additions, and an order now and then."""
        self.steps += 1
        self._is_positive = self._is_positive and not loss < 0
        self._losses.append(loss if math.isfinite(loss) else math.inf)
        self._rates.append(rate)
        self._endless = 0 if math.isfinite(loss) else self._endless + 1
        if self._endless == _NO_END and self.steps > _NO_END:
            late = self._late_by_now()
            return Harm(f"the training loss has not been finite for {_NO_END} steps", late) if late > LATE else None
        if len(self._losses) < max(WINDOW, self.steps // WINDOW):
            return None
        self._end()
        if not self._is_positive:
            return None
        return self._rise() or (self._swings() if self.looks_for_swings else None)

    def _late_by_now(self) -> float:
        return self._late / self._gradients if self._gradients else self.stretches[-1].late if self.stretches else 0.0

    def _end(self) -> None:
        median, rates = statistics.median(self._losses), self._rates
        least = max(_TINY * (self.stretches[0].median if self.stretches else median), sys.float_info.min)
        losses = [max(loss, least) for loss in self._losses]
        mean = statistics.fmean(map(math.log, losses))
        rated = min(rates), statistics.fmean(rates), max(rates)
        self.stretches.append(Stretch(self.steps, median, mean, self._late_by_now(), rated, Swing.of(losses, _LAGS)))
        self._losses, self._rates, self._late, self._gradients = [], [], 0.0, 0

    def _rise(self) -> Harm | None:
        newest, before = self.stretches[-2:], self.stretches[:-2]
        alike = before[:1] + [one for one in before[1:] if all(map(one.is_like, newest))]
        if not alike:
            return None
        best = min(alike, key=lambda one: one.median)
        late = statistics.fmean(one.late for one in newest)
        rise = min(one.median for one in newest) - best.median
        if late <= LATE or rise < _OF_ALL * before[0].median or not all(one.is_above(best) for one in newest):
            return None
        if not _is_beyond(min(one.mean for one in newest), [one.mean for one in before], best.mean):
            return None
        rose = f"from {best.median:.2g} to {newest[-1].median:.2g} over the last {self.steps - best.end} steps"
        return Harm(f"the training loss has risen {rose}", late)

    def _swings(self) -> Harm | None:
        """In all windows since the loss last fell by `BEHIND`, at the same learning rate."""
        newest, some = self.stretches[-1], list[Stretch]()
        for one in reversed(self.stretches[-_POOLED:]):
            if one.median >= BEHIND * newest.median or not one.is_steady(newest):
                break
            some.append(one)
        swing = Swing.total([one.swing for one in some])
        late = statistics.fmean([one.late for one in some] or [0.0])
        if late <= LATE or not swing.comes_back:
            return None
        factor = math.exp(2 * swing.deviation)
        steps = self.steps - some[-1].end + some[-1].swing.count
        return Harm(
            f"the training loss has gone up and down by a factor of {factor:.1f} for the last {steps} steps, "
            "beyond chance,",
            late,
        )


def _is_beyond(newest: float, means: Sequence[float], best: float) -> bool:
    """Whether a loss that wanders as `means` did is above the `best` of them for another reason."""
    wander, rise = _wander(means), newest - best
    learnt = max(means[: means.index(best) + 1]) - best
    is_clear = max(learnt, rise - learnt) > _CLEAR * wander
    return is_clear and rise > _WANDERS * wander and rise >= _AGAIN * _came_back(means)


def _wander(means: Sequence[float]) -> float:
    """How far a loss goes up and then no further, from window to window: how sharp its peaks are.

    A training that learns has none. The first windows count as little as they can tell.
    """
    turns = [((b - a), (c - b)) for a, b, c in zip(means, means[1:], means[2:], strict=False)]
    peaks = sum((up - next_) ** 2 for up, next_ in turns if 0 < up > next_)
    return math.sqrt((_UNKNOWN**2 + 2 * peaks) / (1 + len(turns)))


def _came_back(means: Sequence[float]) -> float:
    """The greatest rise from one of `means` to a later one, at least half of which was lost again after it."""
    greatest, lowest = 0.0, math.inf
    ahead = [math.inf] * (len(means) + 1)
    for place in reversed(range(len(means))):
        ahead[place] = min(means[place], ahead[place + 1])
    for place, mean in enumerate(means):
        rise = mean - lowest
        if greatest < rise < math.inf and ahead[place + 1] <= mean - rise / 2:
            greatest = rise
        lowest = min(lowest, mean)
    return greatest
