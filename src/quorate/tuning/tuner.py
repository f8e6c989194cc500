"""A tuning: which choices are tried in pairs with the default, for how long, and which one is taken; pure.

Proposals that the model refuses, or that send the same parts as an earlier one, are not tried. The others are each
compared with the default on a few pairs of steps. The best three of those that seemed faster are compared again. Only
these new pairs decide, because the first ones have chosen the luckiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quorate.core.intervals import LEAST_VALUES, Interval
from quorate.tuning.choices import REFUSED_ABOVE, Choice, Profile
from quorate.tuning.decision import Pair, fastest, median_speed_up, speed_up
from quorate.tuning.proposals import Proposer

SCREENED, SCREENING_PAIRS, FINALISTS, MOST_PAIRS = 7, 4, 3, 40
_SETTLES = 1
"""The first pair of a trial, in which memory is new, which does not count."""


@dataclass(frozen=True)
class Trial:
    """A candidate that is to be tried: so many pairs of steps, with the default and with it, in turn."""

    number: int
    choice: Choice
    pairs: int


@dataclass
class Tried:
    """A candidate, and what was measured of it."""

    choice: Choice
    predicted: float
    """Seconds to the end of the exchange."""
    first: list[Pair] = field(default_factory=list)
    """The pairs by which finalists are chosen."""
    last: list[Pair] = field(default_factory=list)
    """The pairs of a finalist."""


@dataclass(frozen=True)
class Outcome:
    """The end of a tuning."""

    choice: Choice
    number: int | None
    """The number of the candidate; None: the default stays."""
    interval: Interval | None
    """Its speed-up in a step over the default; None for the default."""


class Tuner:
    """One tuning of at most `steps` steps. `trial` returns what to try next, `measured` takes its pairs."""

    def __init__(self, default: Choice, profile: Profile, proposer: Proposer, steps: int) -> None:
        self.default, self.profile, self._proposer = default, profile, proposer
        self.predicted = profile.predicted(default)
        self.tried: list[Tried] = []
        self.refused = 0
        """Proposals that the model refuses."""
        self.finalists: list[int] | None = None
        """The numbers of the finalists, once they are chosen."""
        self._steps, self._pairs, self._waiting = steps, 0, list[int]()

    def trial(self) -> Trial | None:
        """Return the next trial; None: the tuning has ended."""
        if self.finalists is None:
            is_over = len(self.tried) == SCREENED or self._steps < 2 * (SCREENING_PAIRS + _SETTLES)
            choice = None if is_over else self._proposed()
            if choice is not None:
                self.tried.append(Tried(choice, self.profile.predicted(choice)))
                return self._take(len(self.tried) - 1, SCREENING_PAIRS + _SETTLES)
            self._choose_finalists()
        if not self._waiting:
            return None
        return self._take(self._waiting.pop(0), self._pairs)

    def _take(self, number: int, pairs: int) -> Trial:
        self._steps -= 2 * pairs
        return Trial(number, self.tried[number].choice, pairs)

    def _choose_finalists(self) -> None:
        ratios = {number: median_speed_up(tried.first) for number, tried in enumerate(self.tried)}
        best = sorted((number for number in ratios if ratios[number] > 1), key=lambda number: -ratios[number])
        self.finalists = best[: min(FINALISTS, self._steps // (2 * (LEAST_VALUES + _SETTLES)))]
        self._waiting = list(self.finalists)
        if self.finalists:
            self._pairs = min(MOST_PAIRS, self._steps // (2 * len(self.finalists)))

    def _proposed(self) -> Choice | None:
        """Return the next proposal that may win."""
        while (choice := self._proposer.ask()) is not None:
            predicted = self.profile.predicted(choice)
            if any(self.profile.is_alike(choice, other) for other in (self.default, *(t.choice for t in self.tried))):
                self._proposer.tell(choice, 1.0)
            elif predicted > REFUSED_ABOVE * self.predicted:
                self.refused += 1
                self._proposer.tell(choice, self.predicted / predicted)
            else:
                return choice
        return None

    def measured(self, trial: Trial, pairs: Sequence[Pair | None]) -> None:
        """Take the seconds of a trial's pairs; None: one of its steps was no step like others."""
        tried, counted = self.tried[trial.number], [pair for pair in pairs[_SETTLES:] if pair is not None]
        if self.finalists is None:
            tried.first += counted
            self._proposer.tell(trial.choice, median_speed_up(counted))
        else:
            tried.last += counted

    def outcome(self) -> Outcome:
        """Return the end of a tuning whose trials are over."""
        number = fastest({number: self.tried[number].last for number in self.finalists or ()})
        if number is None:
            return Outcome(self.default, None, None)
        interval = speed_up(self.tried[number].last, len(self.finalists or ()))
        return Outcome(self.tried[number].choice, number, interval)
