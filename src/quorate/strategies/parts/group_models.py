"""The models that one worker gives to means in groups, on time or too late; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.neighbours import Request
from quorate.core.resize import kept
from quorate.core.vectors import Flat
from quorate.strategies.parts.local_steps import LocalSteps


@dataclass(kw_only=True)
class GroupModels(LocalSteps):
    """One worker's model in each turn; turns are the means in groups since the last mean of all, counted from 1.

    A worker has one model for each turn, the same for every worker that requests it. It is the model it arrived with,
    or, if it was requested earlier, the newest that it had then. So all workers of a group add up the same models, and
    nobody waits for anybody. Models are not written to any more. All methods are called under one lock.
    """

    newest: Flat = kept("drop")
    """The model that this worker arrived with at its newest turn, or the mean of all after it."""
    means: int = kept("same", default=0)
    """Means of all so far."""
    models: dict[int, Flat] = kept("drop", default_factory=dict)
    """The model of each turn, as long as it may still be requested."""
    requests: Counter[int] = kept("drop", default_factory=Counter)
    """Requests so far, by turn."""
    expected: dict[int, int] = kept("drop", default_factory=dict)
    """Requests in all, by turn; known once this worker has arrived."""
    held_requests: list[Request] = kept("drop", default_factory=list)
    """Requests of workers that have taken a mean of all which this worker has not taken yet."""

    def arrive(self, turn: int, model: Flat, expected: int) -> Flat | None:
        """Arrive at `turn` with `model`; so many requests are `expected`.

        Returns the model that was requested before this worker arrived, and is its model of the turn; None if it is on
        time.
        """
        taken = self.models.get(turn)
        if taken is None:
            self.models[turn] = model
        self.newest, self.expected[turn] = model, expected
        self._release(turn)
        return taken

    def model_for(self, turn: int, *, has_ended: bool = False) -> Flat | None:
        """The model that a request for `turn` is answered with; None for a turn after the worker `has_ended`."""
        self.requests[turn] += 1
        if turn not in self.models and not has_ended:
            self.models[turn] = self.newest
        model = self.models.get(turn)
        self._release(turn)
        return model

    def _release(self, turn: int) -> None:
        """Drop the model of a turn after the last request for it."""
        if turn in self.expected and self.requests[turn] >= self.expected[turn]:
            self.models.pop(turn, None)

    def begin_anew(self, mean: Flat) -> list[Request]:
        """Count turns from 1 after a mean of all; returns the requests that can be answered now."""
        self.means += 1
        self.newest = mean
        for by_turn in (self.models, self.requests, self.expected):
            by_turn.clear()
        held, self.held_requests = self.held_requests, []
        return held


def mean_of(models: Sequence[Flat]) -> Flat:
    """The mean of `models`, added up in this order."""
    total = models[0].clone()
    for model in models[1:]:
        total.add_(model)
    return total / len(models)
