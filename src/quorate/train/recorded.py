"""The row that says how an optimizer was distributed."""

from __future__ import annotations

import dataclasses

from quorate.checkpoint.participants import Distributed
from quorate.core.strategy import Strategy
from quorate.observe.step_times import timing
from quorate.records.rows import Distribute as DistributeRow
from quorate.train.foreseen import foreseen
from quorate.wire.current import Place


def record(place: Place, kept: Distributed, chosen: Strategy | None) -> None:
    """What was chosen, into the records of the worker, where it keeps some."""
    recorder, optimizer = timing(place).recorder, kept.optimizer
    if recorder is None:
        return
    recorder.write(
        DistributeRow(
            optimizer=kept.name,
            algorithm=type(optimizer).__mro__[2].__name__,
            strategy=kept.strategy,
            settings=dict(kept.settings),
            replicas_differ=chosen is not None and chosen.replicas != "equal",
            parameters=sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
            learning_rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            **foreseen(place, kept),
        )
    )


def settings_of(chosen: Strategy | None) -> dict[str, object]:
    """Its settings, as plain values; none for None."""
    fields = () if chosen is None else dataclasses.fields(chosen)
    return {field.name: plain_of(getattr(chosen, field.name)) for field in fields}


def plain_of(value: object) -> object:
    """As JSON takes it."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)
