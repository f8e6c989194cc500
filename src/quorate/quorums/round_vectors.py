"""What rounds need of vectors and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quorate.core.measured import Measured, WorkerMeasures
from quorate.observe.step_times import StepTimer
from quorate.rounds.log import Round


def that_are(grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Those that there are."""
    return [x for x in grads if x is not None]


def times(grads: Sequence[Tensor | None], factor: float) -> list[Tensor | None]:
    """Each of them `factor` times."""
    return [None if x is None else x * factor for x in grads]


def measures_of(timer: StepTimer, norm: float, *, has_called: bool, is_scaled: bool) -> list[float | None]:
    """What goes with a contribution of that norm: see `core.measured.WorkerMeasures`."""
    waited = timer.waited_before if has_called else None
    return WorkerMeasures(timer.work, waited, None if is_scaled else timer.loss, norm**2).values


def with_words(values: list[float | None] | None, signed: Sequence[Any]) -> Any:
    """One word that goes with a contribution: the measured values, and what `LocalChanges` has signed."""
    return {"signed": signed, "measured": values} if signed else values


def _values_in(word: Any) -> Sequence[Any]:
    values: Sequence[Any] = word["measured"] if isinstance(word, dict) else word
    return values


def measured_in(one: Round, square: float, smoothing: float) -> Measured:
    """What workers told with round `one`, whose sum has this square norm."""
    gradients = sum(count for given in one.contributors.values() for _, count in given)
    measures = [(rank, WorkerMeasures(*_values_in(word))) for rank, own in one.measures.items() for word in own]
    return Measured(one.number, one.quorum, gradients, measures, square, smoothing)
