"""Outer steps on single arrivals: delayed Nesterov momentum, and periods that go by how fast a learner is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.learners import Averaging, Learner
from quorate.strategies.parts.local_steps import Period
from quorate.strategies.parts.outer_gradients import laid_out_as

_ATTEMPTS = 4
"""How often a learner hands in the same outer gradient; after that the round of another learner takes it."""


@dataclass(kw_only=True)
class AsyncLearner(Learner):
    """A learner whose outer gradients are applied as they arrive."""

    every: int = kept("drop")
    """Arrivals in a cycle of the momentum."""
    arrivals: int = kept("same", default=0)
    """Since the momentum moved last."""
    gathered: list[Tensor] = kept("same", is_adapted=True, default_factory=list)
    """The sum of the outer gradients since then, by tensor; none where there was none."""
    m: list[Tensor] = kept("same", is_adapted=True, default_factory=list)
    """The momentum, likewise."""
    speeds: dict[str, float] = kept("same", default_factory=dict)
    """Steps per second, by learner, in the payload of its newest arrival."""

    began_at: int | None = kept("drop", default=None)
    """The newest round applied when the steps since its newest contribution began; None before the first step."""

    def step_begins(self, worker: Worker) -> None:
        """Note at which round the steps of the next outer gradient begin."""
        super().step_begins(worker)
        if self.began_at is None:
            self.began_at = worker.rounds.standing.version

    def hand_in(self, worker: Worker, period: Period, averaging: Averaging) -> dict[str, Any]:
        """A learner, and the round from which on its outer gradient has become older."""
        return {**super().hand_in(worker, period, averaging), "began": self.began_at}

    def restart(self) -> None:
        """The next step is the first of another outer gradient."""
        super().restart()
        self.began_at = None

    @property
    def is_merged(self) -> bool:
        """Whether the common point has all steps that this learner has made."""
        return not any(steps for steps, _ in self.since)

    def give_until_merged(self, worker: Worker, period: Period, take: Callable[[], None]) -> None:
        """Contribute an outer gradient, and return when it is in the common point; `take` applies rounds.

        These come first: a learner that is behind in rounds cannot call for one. Where a round was being formed without
        the outer gradient, the learner hands it in again, at most `_ATTEMPTS` times.
        """
        take()
        began = self.began_at
        for _ in range(_ATTEMPTS if self.mates is None else 1):
            self.began_at = began
            self.give(worker, self.hand_in(worker, period, "mean"), waits=True)
            take()
            if self.is_merged:
                break

    def arrived(self, payloads: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """A round has these, which are applied next."""
        self.arrivals += sum(any(payload["weights"]) for own in payloads.values() for payload in own[:1])
        speeds = [(self._of(rank), payload["speed"]) for rank, own in payloads.items() for payload in own]
        self.speeds |= {learner: speed for learner, speed in speeds if speed}

    def _of(self, rank: int) -> str:
        """Which learner a worker is of."""
        return str(rank if self.mates is None else self.mates.of[rank])

    def weight_of(self, fragment: int, period: Period) -> float:
        """1: outer gradients are not averaged."""
        return 1.0 if self.since[fragment][0] else 0.0

    def weight_of_edits(self, worker: Worker, fragment: int, period: Period) -> float:
        """1 where there are any: as `weight_of`."""
        return 1.0 if super().weight_of_edits(worker, fragment, period) else 0.0

    def period_of(self, rank: int, longest: float) -> float:
        """H_w = floor(v_w / v_max H), at least 1 (Liu et al., 2024: dynamic local updates); H as long as not told."""
        own, fastest = self.speeds.get(self._of(rank)), max(self.speeds.values(), default=0.0)
        return longest if own is None else max(1.0, math.floor(own / fastest * longest))

    def outer_step(self, worker: Worker, fragment: int, x: Flat, sums: Flat, part: float) -> bool:
        """Delayed Nesterov momentum (Liu et al., 2024, Algorithm 3): of N arrivals g in a cycle,

        every one: x -= lr g / N, s += g; every N-th: m = beta m + s / N, x -= lr beta m, s = 0

        With another optimizer a step of it on the mean of the arrivals of a round, each by what it counts.
        """
        if self.outer.kind != "sgd":
            return super().outer_step(worker, fragment, x, sums, part)
        *ways, numbers = sums.segments()
        if not float(numbers[0]):
            return False
        gradient = laid_out_as(x, [way * (worker.size / self.every) for way in ways])  # ways are over all workers
        gathered = self.gathered or [torch.zeros_like(part) for part in x.parts]
        for own, g, total in zip(x.parts, gradient.parts, gathered, strict=True):
            own.add_(g, alpha=-self.outer.rate)
            total.add_(g)
        self.gathered = gathered
        if self.arrivals >= self.every:
            self.m = [m.mul_(self.outer.momentum) for m in self.m] or [torch.zeros_like(part) for part in x.parts]
            for own, m, total in zip(x.parts, self.m, gathered, strict=True):
                own.add_(m.add_(total), alpha=-self.outer.rate * self.outer.momentum)
            self.gathered, self.arrivals = [], 0
        return True
