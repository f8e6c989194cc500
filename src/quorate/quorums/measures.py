"""The measures that travel with a contribution to a round: see `core.means.WorkerMeasures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorate.core.means import Measured, WorkerMeasures
from quorate.observe.step_times import StepTimer
from quorate.rounds.log import Round


def measures_of(timer: StepTimer, norm: float, *, has_called: bool, is_scaled: bool) -> list[float | None]:
    """Return the measures of a contribution of this norm: see `core.means.WorkerMeasures`."""
    waited = timer.waited_before if has_called else None
    return [timer.work, waited, None if is_scaled else timer.loss, norm**2]


def payload_of(values: list[float | None] | None, checksums: Sequence[Any], rows: int | None = None) -> Any:
    """Return the payload of a contribution: its measured values, the checksums of `LocalChanges`, if any, and the
    number of its rows of sparse tables."""
    if rows is not None:
        return {"signed": checksums, "measured": values, "rows": rows}
    return {"signed": checksums, "measured": values} if checksums else values


def _values_in(payload: Any) -> Sequence[Any]:
    values: Sequence[Any] = payload["measured"] if isinstance(payload, dict) else payload
    return values


def measured_in(round: Round, square: float, smoothing: float) -> Measured:
    """Return the measures that workers have sent with `round`, whose sum has the squared norm `square`."""
    gradients = sum(count for pairs in round.contributors.values() for _, count in pairs)
    measures = [(rank, WorkerMeasures(*_values_in(x))) for rank, own in round.measures.items() for x in own]
    return Measured(round.number, round.quorum, gradients, measures, square, smoothing)
