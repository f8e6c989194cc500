"""How noisy gradients are, measured where means of them are formed, into the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from quorate.core.gradient_noise import Smoothing, Squares
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.records.noise_rows import Noise

EVERY = 16
"""Updates from one measurement to the next where all workers form each mean; the 16th is the first."""
ROUNDS, SPAN = 32, 4
"""Of so many rounds, the last few are measured: a gradient that is late is measured like those it is added to."""


def square_of(parts: Sequence[Tensor]) -> float:
    """The squared Euclidean norm of all of them. Cost: one pass."""
    return sum(float(torch.linalg.vector_norm(part)) ** 2 for part in parts)


def next_span(number: int) -> int:
    """Return the next round after `number` in which gradients are measured where they come in rounds."""
    return max(number + 1, (number + 1) // ROUNDS * ROUNDS + ROUNDS - SPAN)


class Asked(Protocol):
    """Who else wants to know."""

    is_wanted: bool

    def measured(self, found: Squares) -> None:
        """One measurement."""


class NoiseWatch:
    """Measures the gradients of one optimizer's worker, and the means of them, every so often.

    All workers measure the same ones, as they go by the number of the update. It is off where nobody reads the records,
    and nobody has `asked`.
    Cost: two passes over the gradient every `EVERY` updates.
    """

    def __init__(self, timer: StepTimer, losses: Losses, size: int, *, is_on: bool, asked: Asked) -> None:
        """`losses` know the number of the newest update, and whether this worker writes the rows."""
        self.timer, self._losses, self._size = timer, losses, size
        self.due_at = 0
        """The number of updates from which on `look` and `take` are to be called again."""
        self._is_possible, self._asked = is_on, asked
        self._norms: list[Tensor] = []
        self._smoothing = Smoothing()

    @property
    def _is_on(self) -> bool:
        return self._is_possible and (self.timer.recorder is not None or self._asked.is_wanted)

    # -- means of all workers

    @property
    def is_due(self) -> bool:
        """Whether the gradients of the update that is being made are measured."""
        return self._is_on and self._losses.version % EVERY == EVERY - 1

    def look(self, parts: Sequence[Tensor]) -> None:
        """Parts of this worker's contribution, before they travel; each is shown once."""
        if self.is_due:
            self._norms += map(torch.linalg.vector_norm, parts)  # a GPU is asked when all have gone

    def take(self, weight: float) -> tuple[float, float]:
        """What goes into the header: `weight` times the squared norm of the gradient, and `weight`; (0, 0) of none.

        A contribution is the gradient times its weight over the number of workers.
        """
        self.due_at = (self._losses.version + 1) // EVERY * EVERY + EVERY - 1
        if not self._norms:
            return 0.0, 0.0
        norms, self._norms = self._norms, []
        return (sum(float(x) ** 2 for x in norms) * self._size**2 / weight, weight) if weight > 0 else (0.0, 0.0)

    def saw(self, square: float, measured: float, weight: float, gradients: int, mean: Sequence[Tensor]) -> None:
        """The sums of what `take` has given, those of the weights, and the mean that has come of `gradients`."""
        if self._losses.is_first and self.counts(measured, weight, gradients):
            self._note(Squares(gradients=gradients, own=square / weight, mean=square_of(mean)))

    # -- rounds

    @property
    def spans(self) -> bool:
        """Whether the round that comes next is one that is measured."""
        return self._is_on and self._losses.version % ROUNDS >= ROUNDS - SPAN

    def take_of(self, contribution: Sequence[Tensor], weight: float) -> tuple[float, float]:
        """As `take`, of a whole contribution."""
        if not self.spans or weight <= 0:
            return 0.0, 0.0
        return square_of(contribution) * self._size**2 / weight, weight

    def saw_sum(
        self, square: float, measured: float, weight: float, gradients: int, sums: Sequence[Tensor], smoothing: float
    ) -> None:
        """As `saw`, of the sum of contributions; `smoothing` is how much of the noise of gradients is left in them."""
        if self._losses.is_first and self.counts(measured, weight, gradients):
            mean = square_of(sums) * (self._size / weight) ** 2
            found = Squares(gradients=gradients, own=square / weight, mean=mean)
            lost = found.noise * (1 / smoothing - 1)  # what momentum has taken out of each, and n-th of it of the mean
            self._note(Squares(gradients=gradients, own=found.own + lost, mean=found.mean + lost / gradients))

    def counts(self, measured: float, weight: float, gradients: int) -> bool:
        """Whether all that is in a sum was measured, and is of two gradients at least."""
        return self._is_on and gradients > 1 and weight > 0 and math.isclose(measured, weight, rel_tol=1e-4)

    def _note(self, found: Squares) -> None:
        if not math.isfinite(found.own + found.mean):
            return
        if self._asked.is_wanted:
            self._asked.measured(found)
        recorder = self.timer.recorder
        if recorder is None:
            return
        smoothed = self._smoothing.add(found)
        recorder.write(
            Noise(
                step=self.timer.steps + 1,
                time=self.timer.clock.now(),
                optimizer=self.timer.name,
                gradients=found.gradients,
                own=found.own,
                mean=found.mean,
                signal=smoothed.signal,
                noise=smoothed.noise,
            )
        )
