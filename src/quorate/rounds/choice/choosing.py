"""The quorum that brings a training furthest in a second: a pure function of what workers measured. No torch.

Let k of P workers be waited for. A simulation with the workers' own times (`forecast`) gives three numbers. These are
the seconds T that a round takes, the gradients m in it, and the rounds s that they are stale in the mean. A gradient
counts 1 / P of a step, so its delay is s m / P steps. Of each gradient one part is signal and B parts are noise (B =
E|g - Eg|^2 / |Eg|^2). Of the P that make a step the noise is averaged away, so the direction is a share P / (P + B) of
a step's effect. Lateness spoils the direction, not the noise, which is as good late as early. The source is Agarwal and
Duchi, "Distributed delayed stochastic optimization", 2011: the delay is in the term without the noise. So the seconds
for a step's worth of progress are, but for a factor that is the same for all k,

    cost(k) = (T / m) (1 + a (s m / P) P / (P + B)),

with `lateness` a, what a step of lateness costs where there is no noise. B is McCandlish et al.'s simple noise scale
("An empirical model of large-batch training", 2018), in gradients of one worker, from the squares of single gradients
and of their sum.

In the forecast every worker repeats its measured times in order, so that what was slow together stays together, by
the rules of `rounds.calls`. Pure. Cost: some 3 µs for each gradient.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from quorate.core.means import Measured
from quorate.core.resize import kept

FIRST = 4  # steps of each worker in the first window; each is twice as long as the one before it
WORSE = 4.0  # standard errors by which a window's mean loss has to be above an earlier one's to count as worse
_LOOKS_BACK = 3
SWINGS = 3
_LEAVES_BEHIND = 3.0  # factor by which the loss falls within these windows where a training leaves its swings behind
_CORRELATION = 0.25  # the least correlation of a loss with the one before it that counts as more than chance
_DEVIATION = 0.22


@dataclass(frozen=True)
class Swing:
    """How the logarithm of some losses deviates from its linear trend."""

    square: float
    product: float
    count: int

    @staticmethod
    def of(losses: Sequence[float]) -> Swing:
        if len(losses) < 3 or not all(0 < loss < math.inf for loss in losses):
            return Swing(0.0, 0.0, 0)
        logs = [math.log(loss) for loss in losses]
        trend = statistics.linear_regression(range(len(logs)), logs)
        deviations = [x - trend.intercept - trend.slope * t for t, x in enumerate(logs)]
        product = sum(x * later for x, later in itertools.pairwise(deviations))
        return Swing(sum(x * x for x in deviations), product, len(deviations))

    @staticmethod
    def total(swings: Sequence[Swing]) -> Swing:
        """The sum of all known swings."""
        return Swing(sum(s.square for s in swings), sum(s.product for s in swings), sum(s.count for s in swings))

    @staticmethod
    def is_more_than_chance(swings: Sequence[Swing]) -> bool:
        """Whether losses go up and down beyond what batches drawn at random do; False where one swing is unknown."""
        total = Swing.total(swings)
        if not all(swing.count for swing in swings) or total.square <= 0 or total.product < _CORRELATION * total.square:
            return False
        return math.sqrt(max(0.0, total.product) / total.count) > _DEVIATION


@dataclass
class Window:
    """The measurements since the quorum was chosen last."""

    rounds: list[Measured] = field(default_factory=list)

    @property
    def gradients(self) -> int:
        """The number of gradients in all rounds of the window."""
        return sum(measured.gradients for measured in self.rounds)

    @property
    def work(self) -> list[list[float]]:
        """The seconds of each worker's steps, in order; workers without measurements are left out."""
        seconds: dict[int, list[float]] = {}
        for measured in self.rounds:
            for rank, measures in measured.measures if measured.number > 1 else ():  # everything is slow once
                seconds.setdefault(rank, []).append(measures.work)
        return [own for _, own in sorted(seconds.items())]

    def exchange(self, wait_for: int) -> float:
        waits = sorted(
            measures.waited
            for measured in self.rounds
            for _, measures in measured.measures
            if measures.waited is not None
        )
        return waits[int(len(waits) / (2 * wait_for))] if waits else 0.0

    @property
    def noise(self) -> float:
        """B; 0 where it is unknown, infinite where there is nothing but noise."""
        square = signal = 0.0
        pairs = count = 0
        for measured in self.rounds:
            squares = [measures.square for _, measures in measured.measures]
            if len(squares) != measured.gradients or measured.gradients < 2:
                continue  # where gradients are missing, or alone, nothing is to be seen
            square += sum(squares)
            signal += measured.square - sum(squares)
            count += measured.gradients
            pairs += measured.gradients * (measured.gradients - 1)
        if not pairs or not square > 0:
            return 0.0
        share = (signal / pairs) / (square / count)
        return max(0.0, 1 / share - 1) / self.rounds[-1].smoothing if share > 0 else math.inf

    @property
    def losses(self) -> list[float]:
        """The losses that workers measured."""
        return [
            measures.loss for measured in self.rounds for _, measures in measured.measures if measures.loss is not None
        ]

    @property
    def swing(self) -> Swing:
        """The swing of each worker's losses, added up: their mean would hide swings that all have in common."""
        losses: dict[int, list[float]] = {}
        for measured in self.rounds:
            for rank, measures in measured.measures:
                if measures.loss is not None:
                    losses.setdefault(rank, []).append(measures.loss)
        return Swing.total([Swing.of(own) for own in losses.values()])

    @property
    def squares(self) -> list[float]:
        """The squared norms of gradients that workers measured."""
        return [measures.square for measured in self.rounds for _, measures in measured.measures]


@dataclass(frozen=True)
class Level:
    """The level of a training: a mean, lower is better, and its standard error."""

    mean: float
    error: float

    def is_worse_than(self, before: Level) -> bool:
        """Return whether this level is worse beyond chance, or no number."""
        if not math.isfinite(self.mean):
            return True
        return self.mean - before.mean > WORSE * math.hypot(self.error, before.error)


def level(window: Window) -> Level | None:
    """Return the mean of losses, or of the logarithm of gradient norms; None where there are too few."""
    values = window.losses
    if len(values) < 2:
        values = [math.log(square) / 2 if square > 0 else square for square in window.squares if square != 0]
    if len(values) < 2:
        return None
    if not all(map(math.isfinite, values)):
        return Level(math.inf, 0.0)
    return Level(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))


def cost(expected: Forecast, size: int, noise: float, lateness: float) -> float:
    """Return the seconds for the progress of one fresh gradient."""
    late = expected.staleness * expected.gradients / size
    return expected.seconds_per_gradient * (1 + lateness * late * size / (size + noise))


@dataclass(frozen=True)
class Choice:
    """A quorum, and the reason in words."""

    wait_for: int
    why: str


def choose(window: Window, wait_for: int, *, least: int, lateness: float, margin: float) -> Choice:
    """Return the greatest quorum whose cost is at most `margin` above the lowest, from `least` on. To go up from
    `wait_for` it has to be within half of the margin, so that chance changes nothing."""
    work = window.work
    size = len(work)
    if not size:
        return Choice(wait_for, "nothing was measured")
    noise, exchange = window.noise, window.exchange(wait_for)
    known = {k: forecast(work, k, exchange) for k in quorums(size)}
    costs = {k: cost(expected, size, noise, lateness) for k, expected in known.items() if k >= min(least, size)}
    lowest = min(costs.values())
    fit = [k for k, seconds in costs.items() if seconds <= lowest * (1 + margin / 2 if k > wait_for else 1 + margin)]
    best = max(fit)
    why = (
        f"{1 / known[best].seconds_per_gradient:.3g} gradients a second are expected, waiting for all "
        f"{1 / known[size].seconds_per_gradient:.3g}; {known[best].staleness:.2f} rounds late, noise {noise:.3g}"
    )
    return Choice(best, why)


@dataclass(frozen=True)
class Trust:
    """The least quorum allowed: larger after each time that training got worse under a small one."""

    least: int = 1
    windows: int = 0
    patience: int = 4  # the number of windows for which it will stay the next time

    def after(self, wait_for: int, size: int, *, is_worse: bool) -> Trust:
        if is_worse and wait_for < size:
            return Trust(min(size, 2 * wait_for), self.patience, 2 * self.patience)
        if self.windows > 1:
            return Trust(self.least, self.windows - 1, self.patience)
        return Trust(max(1, self.least // 2), self.patience if self.least > 2 else 0, self.patience)


def is_worse(levels: Sequence[Level]) -> bool:
    """Return whether the newest level is worse than one of the last few before it."""
    return len(levels) > 1 and any(levels[-1].is_worse_than(earlier) for earlier in levels[-1 - _LOOKS_BACK : -1])


def swings(recent: Sequence[Swing], levels: Sequence[Level]) -> bool:
    """Return whether losses swing beyond chance, in a training that is not about to leave its swings behind."""
    if len(recent) < SWINGS or not Swing.is_more_than_chance(recent):
        return False
    return len(levels) < SWINGS or levels[-1].mean * _LEAVES_BEHIND > levels[-SWINGS].mean


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The settings of the strategy that the choice goes by."""

    window: int
    lateness: float
    margin: float


@dataclass(kw_only=True)
class Chooser:
    """The measurements, window by window, and the trust in small quorums; the state of a strategy."""

    length: int = kept("same", default=FIRST)
    window: Window = kept("drop", default_factory=Window)
    levels: list[Level] = kept("drop", default_factory=list)
    swings: list[Swing] = kept("drop", default_factory=list)
    trust: tuple[int, int, int] = kept("same", default=(1, 0, 4))

    def saw(self, measured: Measured, size: int, rule: Rule) -> Choice | None:
        """Take in an applied round; return another quorum where a window ends with it that calls for one."""
        self.window.rounds.append(measured)
        if self.window.gradients < min(self.length, rule.window) * size:
            return None
        ended, self.window, self.length = self.window, Window(), min(2 * self.length, rule.window)
        newest = level(ended)
        self.levels = [*self.levels[-_LOOKS_BACK:], *([] if newest is None else [newest])]
        self.swings = [*self.swings[1 - SWINGS :], ended.swing]
        worse = is_worse(self.levels) or swings(self.swings, self.levels)
        if worse:
            self.swings = []
        trust = Trust(*self.trust).after(measured.wait_for, size, is_worse=worse)
        self.trust = trust.least, trust.windows, trust.patience
        choice = choose(ended, measured.wait_for, least=trust.least, lateness=rule.lateness, margin=rule.margin)
        return None if choice.wait_for == measured.wait_for else choice


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Means over the simulated rounds."""

    seconds: float
    gradients: float
    staleness: float  # in rounds, per gradient

    @property
    def seconds_per_gradient(self) -> float:
        """Seconds from one gradient to the next, of all workers together."""
        return self.seconds / self.gradients


def forecast(work: Sequence[Sequence[float]], wait_for: int, exchange: float = 0.0, *, steps: int = 40) -> Forecast:
    """Simulate rounds under a quorum of `wait_for`, of workers whose steps take `work` seconds, by worker. Each worker
    has at least one time; about `steps` steps of every worker are simulated."""
    size = len(work)
    assert 1 <= wait_for <= size
    ready = [(own[0], rank) for rank, own in enumerate(work)]
    heapq.heapify(ready)
    done, version = [0] * size, [0] * size
    callers: list[int] = []
    pending: list[int] = []
    newest, formed = 0, 0.0
    taken, age = 0, 0
    for _ in range(steps * size):
        if not ready:
            break
        now, rank = heapq.heappop(ready)
        pending.append(version[rank])
        done[rank] += 1
        if newest > version[rank]:
            version[rank] = newest
            heapq.heappush(ready, (max(now, formed) + _next(work, done, rank), rank))
            continue
        callers.append(rank)
        if len(callers) < wait_for:
            continue
        newest, formed = newest + 1, now + exchange
        taken += len(pending)
        age += sum(newest - 1 - computed_on for computed_on in pending)
        for rank in callers:
            version[rank] = newest
            heapq.heappush(ready, (formed + _next(work, done, rank), rank))
        pending, callers = [], []
    assert newest, "every step of every worker ends in a round"
    return Forecast(seconds=formed / newest, gradients=taken / newest, staleness=age / taken)


def _next(work: Sequence[Sequence[float]], done: Sequence[int], rank: int) -> float:
    own = work[rank]
    return own[done[rank] % len(own)]


def quorums(size: int, *, most: int = 8) -> list[int]:
    """Return the quorums to compare among `size` workers, rising: all from 1 to `size`, or `most` by equal ratios."""
    if size <= most:
        return list(range(1, size + 1))
    return sorted({round(math.exp(math.log(size) * place / (most - 1))) for place in range(most)})
