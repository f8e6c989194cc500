"""What one worker gives to means in groups that are formed in turns, on time or too late; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.neighbours import Request
from quorate.core.resize import kept
from quorate.core.vectors import Flat
from quorate.strategies.parts.local_steps import LocalSteps


@dataclass(kw_only=True)
class Turns(LocalSteps):
    """Which model counts for this worker in the turns since the last mean of all, counted from 1.

    For each turn that is one model, the same for whoever asks: the one it came with, or, where somebody asked before it
    came, the newest that it had. So all workers of a group add up the same models, though nobody waits for anybody.
    Models are not written to any more. All methods are called under one lock.
    """

    newest: Flat = kept("drop")
    """What this worker came with to its newest turn, or the mean after it."""
    means: int = kept("same", default=0)
    """Means of all so far."""
    given: dict[int, Flat] = kept("drop", default_factory=dict)
    """By turn, as long as anybody may still ask."""
    asked: Counter[int] = kept("drop", default_factory=Counter)
    """How often, by turn."""
    others: dict[int, int] = kept("drop", default_factory=dict)
    """How many will ask, by turn this worker has come to."""
    early: list[Request] = kept("drop", default_factory=list)
    """Questions of workers that are past a mean which this one has not taken in."""

    def come(self, turn: int, model: Flat, others: int) -> Flat | None:
        """This worker comes to `turn` with `model`, for which so many `others` ask; what counts instead, if late."""
        instead = self.given.get(turn)
        if instead is None:
            self.given[turn] = model
        self.newest, self.others[turn] = model, others
        self._forget(turn)
        return instead

    def asks(self, turn: int, *, has_ended: bool = False) -> Flat | None:
        """Somebody asks for this worker's model in `turn`; None where it `has_ended` before."""
        self.asked[turn] += 1
        if turn not in self.given and not has_ended:
            self.given[turn] = self.newest
        model = self.given.get(turn)
        self._forget(turn)
        return model

    def _forget(self, turn: int) -> None:
        """Let go of what everybody has asked for."""
        if turn in self.others and self.asked[turn] >= self.others[turn]:
            self.given.pop(turn, None)

    def all_agreed(self, mean: Flat) -> list[Request]:
        """Everyone is at `mean`: turns begin anew; returns the questions that can be answered now."""
        self.means += 1
        self.newest = mean
        for by_turn in (self.given, self.asked, self.others):
            by_turn.clear()
        early, self.early = self.early, []
        return early


def mean_of(models: Sequence[Flat]) -> Flat:
    """Their mean, added up in this order."""
    total = models[0].clone()
    for model in models[1:]:
        total.add_(model)
    return total / len(models)
