"""Records of the noise of gradients, measured where means of them are formed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from quorate.core.device_copies import values_of
from quorate.core.gradient_noise import Smoothing, Squares
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.records.rows import Noise

EVERY = 16
"""Updates between measurements where all workers form each mean; the 16th is the first."""
ROUNDS, SPAN = 32, 4
"""The last `SPAN` of `ROUNDS` rounds are measured: a late gradient is measured like those it is added to."""


def square_of(parts: Sequence[Tensor]) -> float:
    """Return the squared Euclidean norm of all parts together. Cost: one pass."""
    return sum(norm**2 for norm in values_of([torch.linalg.vector_norm(part) for part in parts]))


def next_span(number: int) -> int:
    """Return the next round after `number` in which gradients are measured where they come in rounds."""
    return max(number + 1, (number + 1) // ROUNDS * ROUNDS + ROUNDS - SPAN)


class Asked(Protocol):
    """Another reader of the measurements."""

    is_wanted: bool

    def measured(self, squares: Squares) -> None:
        """Take one measurement."""


class NoiseWatch:
    """Measures the gradients of one optimizer, and the means of them, at intervals.

    All workers measure the same updates, as they go by their number. It is off if nobody reads the records, and `asked`
    wants no measurements. Cost: two passes over the gradient every `EVERY` updates.
    """

    def __init__(self, timer: StepTimer, losses: Losses, size: int, *, is_on: bool, asked: Asked) -> None:
        """`losses` know the number of the newest update, and whether this worker writes the rows."""
        self.timer, self._losses, self._size = timer, losses, size
        self.divisor = size
        """The number by which contributions to rounds are divided."""
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
        """Whether the gradients of the current update are measured."""
        return self._is_on and self._losses.version % EVERY == EVERY - 1

    def look(self, parts: Sequence[Tensor]) -> None:
        """Measure parts of this worker's contribution, before they are sent; call it once for each."""
        if self.is_due:
            self._norms += map(torch.linalg.vector_norm, parts)  # a GPU is synchronized after all were sent

    def take(self, weight: float) -> tuple[float | Tensor, float]:
        """Return `weight` times the squared norm of the gradient, and `weight`, for the header; (0, 0) without a
        gradient. The former is a tensor on the gradient's GPU, which is not waited for.

        A contribution is the gradient times its weight over the number of workers.
        """
        self.due_at = (self._losses.version + 1) // EVERY * EVERY + EVERY - 1
        if not self._norms:
            return 0.0, 0.0
        norms, self._norms = self._norms, []
        if weight <= 0:
            return 0.0, 0.0
        factor = self._size**2 / weight
        if norms[0].device.type != "cpu":
            return torch.stack([x.float() for x in norms]).square().sum() * factor, weight
        return sum(float(x) ** 2 for x in norms) * factor, weight

    def saw(self, square: float, measured: float, weight: float, gradients: int, mean: float, step: int) -> None:
        """Take the sums of the numbers of `take`, the sum of weights, and the squared norm of the mean of `gradients`
        gradients, which `step` has agreed on."""
        if self._losses.is_first and self.counts(measured, weight, gradients):
            self._note(Squares(gradients=gradients, own=square / weight, mean=mean), step)

    # -- rounds

    @property
    def spans(self) -> bool:
        """Whether the next round is measured."""
        return self._is_on and self._losses.version % ROUNDS >= ROUNDS - SPAN

    def take_of(self, contribution: Sequence[Tensor], weight: float) -> tuple[float, float]:
        """Return the numbers of `take` for a full contribution."""
        if not self.spans or weight <= 0:
            return 0.0, 0.0
        return square_of(contribution) * self.divisor**2 / weight, weight

    def saw_sum(
        self, square: float, measured: float, weight: float, gradients: int, sums: Sequence[Tensor], smoothing: float
    ) -> None:
        """Take the same as `saw` for a sum of contributions, in which a share `smoothing` of the noise is left."""
        if self._losses.is_first and self.counts(measured, weight, gradients):
            mean = square_of(sums) * (self.divisor / weight) ** 2
            squares = Squares(gradients=gradients, own=square / weight, mean=mean)
            lost = squares.noise * (1 / smoothing - 1)  # out of each contribution; an n-th of it out of the mean
            squares = Squares(gradients=gradients, own=squares.own + lost, mean=squares.mean + lost / gradients)
            self._note(squares, self.timer.steps + 1)

    def counts(self, measured: float, weight: float, gradients: int) -> bool:
        """Return whether all contributions to a sum were measured, and two gradients or more."""
        return self._is_on and gradients > 1 and weight > 0 and math.isclose(measured, weight, rel_tol=1e-4)

    def _note(self, squares: Squares, step: int) -> None:
        if not math.isfinite(squares.own + squares.mean):
            return
        if self._asked.is_wanted:
            self._asked.measured(squares)
        recorder = self.timer.recorder
        if recorder is None:
            return
        smoothed = self._smoothing.add(squares)
        recorder.write(
            Noise(
                step=step,
                time=self.timer.clock.now(),
                optimizer=self.timer.name,
                gradients=squares.gradients,
                own=squares.own,
                mean=squares.mean,
                signal=smoothed.signal,
                noise=smoothed.noise,
            )
        )
