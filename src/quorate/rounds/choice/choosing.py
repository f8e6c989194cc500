"""Which quorum brings a training furthest in a second: a pure function of what workers have told. No torch.

Let k of P workers be waited for. Going through the workers' own times again (`forecast`) says how many seconds T a
round takes, how many gradients m are in it, and how many rounds s they are stale in the mean. A gradient counts 1 / P
of a step, so what it was late by is s m / P steps. Of each gradient one part is signal and B parts are
noise (B = E|g - Eg|^2 / |Eg|^2), and of the P that make a step the noise is averaged away: the direction is a share
P / (P + B) of what a step does. Lateness spoils the direction, not the noise, which is as good late as early
(Agarwal and Duchi, "Distributed delayed stochastic optimization", 2011: the delay is in the term without the noise).
So the seconds for a step's worth of progress are, but for a factor that is the same for all k,

    cost(k) = (T / m) (1 + a (s m / P) P / (P + B)),

with `lateness` a, what a step of lateness costs where there is no noise. B is McCandlish et al.'s simple noise scale
("An empirical model of large-batch training", 2018), in gradients of one worker, from the squares of single gradients
and of their sum.

The forecast for another quorum goes through the workers' own times again, as they were measured. Every worker repeats
the times it has told, in their order, so that what was slow together stays together. The rules are those of
`rounds.calls`: whoever finds that no round has started since its step before calls, and waits; whoever finds one goes
on at once; a round starts with the call that makes the quorum, takes in all that is pending, and is there after
`exchange` seconds. Pure. Cost: some 3 µs for each gradient that is gone through.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from quorate.core.measured import Measured
from quorate.core.resize import kept

FIRST = 4
"""Steps of each worker in the first window; each is twice as long as the one before it."""
WORSE = 4.0
"""Standard errors by which a window's mean loss has to be above an earlier one's to count as worse."""
_LOOKS_BACK = 3
SWINGS = 3
"""Windows in which losses swing."""
_LEAVES_BEHIND = 3.0
"""The factor by which the loss falls, within these windows, where a training is about to leave its swings behind."""
_CORRELATION = 0.25
"""The least correlation of a loss with the one before it that counts as more than chance."""
_DEVIATION = 0.22
"""The least standard deviation of a swing, of the logarithm of the loss."""


@dataclass(frozen=True)
class Swing:
    """How the logarithm of some losses deviates from its linear trend."""

    square: float
    """The sum of squared deviations."""
    product: float
    """The sum of products of each deviation with the next."""
    count: int

    @staticmethod
    def of(losses: Sequence[float]) -> Swing:
        """The swing of `losses`, in order; of count 0 where one of them is not positive and finite, or they are few."""
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
    """What was measured since the quorum was chosen last."""

    rounds: list[Measured] = field(default_factory=list)

    @property
    def gradients(self) -> int:
        """In all rounds of the window together."""
        return sum(one.gradients for one in self.rounds)

    @property
    def work(self) -> list[list[float]]:
        """Seconds that each worker was at work on its steps, in order; workers that told nothing are left out."""
        found: dict[int, list[float]] = {}
        for one in self.rounds:
            for rank, measures in one.measures if one.number > 1 else ():  # everything is slow once
                found.setdefault(rank, []).append(measures.work)
        return [own for _, own in sorted(found.items())]

    def exchange(self, wait_for: int) -> float:
        """Seconds from the last call until the round is there: what one in `wait_for` waits."""
        waits = sorted(
            measures.waited for one in self.rounds for _, measures in one.measures if measures.waited is not None
        )
        return waits[int(len(waits) / (2 * wait_for))] if waits else 0.0

    @property
    def noise(self) -> float:
        """B; 0 where it is not known, infinite where there is nothing but noise."""
        square = signal = 0.0
        pairs = count = 0
        for one in self.rounds:
            squares = [measures.square for _, measures in one.measures]
            if len(squares) != one.gradients or one.gradients < 2:
                continue  # where gradients are missing, or alone, nothing is to be seen
            square += sum(squares)
            signal += one.square - sum(squares)
            count += one.gradients
            pairs += one.gradients * (one.gradients - 1)
        if not pairs or not square > 0:
            return 0.0
        share = (signal / pairs) / (square / count)
        return max(0.0, 1 / share - 1) / self.rounds[-1].smoothing if share > 0 else math.inf

    @property
    def losses(self) -> list[float]:
        """Those that were told."""
        return [measures.loss for one in self.rounds for _, measures in one.measures if measures.loss is not None]

    @property
    def swing(self) -> Swing:
        """Of the losses of each worker, all added up: side by side they would average out what they all go through."""
        told: dict[int, list[float]] = {}
        for one in self.rounds:
            for rank, measures in one.measures:
                if measures.loss is not None:
                    told.setdefault(rank, []).append(measures.loss)
        return Swing.total([Swing.of(own) for own in told.values()])

    @property
    def squares(self) -> list[float]:
        """Squared norms of gradients that were told."""
        return [measures.square for one in self.rounds for _, measures in one.measures]


@dataclass(frozen=True)
class Level:
    """Where a training stands: the mean of what says so, lower is better, and its standard error."""

    mean: float
    error: float

    def is_worse_than(self, before: Level) -> bool:
        """Beyond chance, or no number."""
        if not math.isfinite(self.mean):
            return True
        return self.mean - before.mean > WORSE * math.hypot(self.error, before.error)


def level(window: Window) -> Level | None:
    """Of the losses; where they are not known, of the logarithm of gradients' norms, which grow before a training
    diverges. None where there are too few."""
    found = window.losses
    if len(found) < 2:
        found = [math.log(square) / 2 if square > 0 else square for square in window.squares if square != 0]
    if len(found) < 2:
        return None
    if not all(map(math.isfinite, found)):
        return Level(math.inf, 0.0)
    return Level(statistics.fmean(found), statistics.stdev(found) / math.sqrt(len(found)))


def cost(one: Forecast, size: int, noise: float, lateness: float) -> float:
    """Seconds for the progress of one fresh gradient."""
    late = one.staleness * one.gradients / size
    return one.seconds_per_gradient * (1 + lateness * late * size / (size + noise))


@dataclass(frozen=True)
class Choice:
    """A quorum, and what is to be said of it."""

    wait_for: int
    why: str


def choose(window: Window, wait_for: int, *, least: int, lateness: float, margin: float) -> Choice:
    """The greatest quorum whose cost is at most `margin` above the lowest there is, from `least` on.

    To go up from `wait_for` it has to be within half of the margin, so that chance changes nothing.
    """
    work = window.work
    size = len(work)
    if not size:
        return Choice(wait_for, "nothing was measured")
    noise, exchange = window.noise, window.exchange(wait_for)
    known = {k: forecast(work, k, exchange) for k in quorums(size)}
    costs = {k: cost(one, size, noise, lateness) for k, one in known.items() if k >= min(least, size)}
    lowest = min(costs.values())
    fit = [k for k, found in costs.items() if found <= lowest * (1 + margin / 2 if k > wait_for else 1 + margin)]
    best = max(fit)
    why = (
        f"{1 / known[best].seconds_per_gradient:.3g} gradients a second are expected, waiting for all "
        f"{1 / known[size].seconds_per_gradient:.3g}; {known[best].staleness:.2f} rounds late, noise {noise:.3g}"
    )
    return Choice(best, why)


@dataclass(frozen=True)
class Trust:
    """How small a quorum is allowed to be: less so each time that training got worse under one."""

    least: int = 1
    windows: int = 0
    """For which `least` stays as it is."""
    patience: int = 4
    """For how many it will stay the next time."""

    def after(self, wait_for: int, size: int, *, is_worse: bool) -> Trust:
        """What it is after a window under `wait_for` of `size` workers."""
        if is_worse and wait_for < size:
            return Trust(min(size, 2 * wait_for), self.patience, 2 * self.patience)
        if self.windows > 1:
            return Trust(self.least, self.windows - 1, self.patience)
        return Trust(max(1, self.least // 2), self.patience if self.least > 2 else 0, self.patience)


def is_worse(levels: Sequence[Level]) -> bool:
    """Whether the newest is worse than one of the last few before it."""
    return len(levels) > 1 and any(levels[-1].is_worse_than(one) for one in levels[-1 - _LOOKS_BACK : -1])


def swings(some: Sequence[Swing], levels: Sequence[Level]) -> bool:
    """Whether losses go up and down beyond chance, in a training that is not about to leave it behind."""
    if len(some) < SWINGS or not Swing.is_more_than_chance(some):
        return False
    return len(levels) < SWINGS or levels[-1].mean * _LEAVES_BEHIND > levels[-SWINGS].mean


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The settings of the strategy that the choice goes by."""

    window: int
    """Steps of each worker, in the mean, from one choice to the next."""
    lateness: float
    margin: float


@dataclass(kw_only=True)
class Chooser:
    """What was measured, window by window, and how far small quorums are trusted; a strategy's state."""

    length: int = kept("same", default=FIRST)
    """Steps of each worker in this window."""
    window: Window = kept("drop", default_factory=Window)
    levels: list[Level] = kept("drop", default_factory=list)
    swings: list[Swing] = kept("drop", default_factory=list)
    trust: tuple[int, int, int] = kept("same", default=(1, 0, 4))
    """See `Trust`."""

    def saw(self, one: Measured, size: int, rule: Rule) -> Choice | None:
        """Take in a round that was applied; another quorum, where a window ends with it that calls for one."""
        self.window.rounds.append(one)
        if self.window.gradients < min(self.length, rule.window) * size:
            return None
        ended, self.window, self.length = self.window, Window(), min(2 * self.length, rule.window)
        found = level(ended)
        self.levels = [*self.levels[-_LOOKS_BACK:], *([] if found is None else [found])]
        self.swings = [*self.swings[1 - SWINGS :], ended.swing]
        worse = is_worse(self.levels) or swings(self.swings, self.levels)
        if worse:
            self.swings = []
        trust = Trust(*self.trust).after(one.wait_for, size, is_worse=worse)
        self.trust = trust.least, trust.windows, trust.patience
        choice = choose(ended, one.wait_for, least=trust.least, lateness=rule.lateness, margin=rule.margin)
        return None if choice.wait_for == one.wait_for else choice


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Means over the rounds that were gone through."""

    seconds: float
    """From one round to the next."""
    gradients: float
    """In a round."""
    staleness: float
    """Of a gradient, in rounds."""

    @property
    def seconds_per_gradient(self) -> float:
        """Of all workers together."""
        return self.seconds / self.gradients


def forecast(work: Sequence[Sequence[float]], wait_for: int, exchange: float = 0.0, *, steps: int = 40) -> Forecast:
    """Of workers whose steps take `work` seconds each, by worker, under a quorum of `wait_for` of them.

    Each has at least one time; about `steps` of every worker are gone through.
    """
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
        age += sum(newest - 1 - one for one in pending)
        for one in callers:
            version[one] = newest
            heapq.heappush(ready, (formed + _next(work, done, one), one))
        pending, callers = [], []
    assert newest, "every step of every worker ends in a round"
    return Forecast(seconds=formed / newest, gradients=taken / newest, staleness=age / taken)


def _next(work: Sequence[Sequence[float]], done: Sequence[int], rank: int) -> float:
    own = work[rank]
    return own[done[rank] % len(own)]


def quorums(size: int, *, most: int = 8) -> list[int]:
    """Those worth a look among `size` workers, rising: all from 1 to `size`, or `most` of them by equal ratios."""
    if size <= most:
        return list(range(1, size + 1))
    return sorted({round(math.exp(math.log(size) * place / (most - 1))) for place in range(most)})
