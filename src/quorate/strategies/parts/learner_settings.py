"""The setting of who a learner is: one worker, or several that step together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy, Worker
from quorate.strategies.parts.local_steps import Period
from quorate.strategies.parts.mates import Mates, learners_from


@dataclass(frozen=True, kw_only=True)
class LearnerSettings(Strategy):
    """The settings that strategies of learners on rounds have in common; their hooks are their own."""

    compresses = "ways"

    learners: int | Literal["each", "host"] = "each"
    """Who is a learner: each worker; the workers of each host; or so many groups of ranks that follow each other, whose
    sizes differ by one at most. The workers of a learner average their gradients in every step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.learners, int) and self.learners < 1:
            raise ConfigurationError(f'learners is {self.learners}; it must be a number (at least 1), "each" or "host"')

    @property
    def lets_join(self) -> bool:
        return super().lets_join and self.learners == "each"

    @property
    def agrees_in_backward(self) -> bool:
        return self.learners != "each"

    def mates_of(self, worker: Worker, period: Period) -> Mates | None:
        """Return the workers of this worker's learner; None if it is one by itself."""
        of = learners_from(self.learners, worker)
        if not of or worker.rank >= worker.size:  # who comes later is refused: see `lets_join`
            return None
        ranks = [rank for rank, learner in enumerate(of) if learner == of[worker.rank]]
        return Mates(worker.group(ranks), of, period, partial(self.apply, worker))
