"""Which schedule is best for a model, by playing each of them with the times of its stages."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.clock import clock
from quorate.sharding.stages.cut import Cost, cut_evenly
from quorate.sharding.stages.layout import Layout
from quorate.sharding.stages.orders import SCHEDULES, refusal
from quorate.sharding.stages.units import Unit

_MOST_CHUNKS = 4
_WORTH = 0.98
"""A schedule that comes later in the list has to take less than this share of the best so far."""


def choose(
    units: Sequence[Unit], costs: Sequence[Cost], workers: int, microbatches: int, *, is_resharded: bool
) -> Layout:
    """The layout whose step is shortest, sending taking no time. Simpler ones come first, and win where others gain
    less than 2 %. Raises `ConfigurationError` where no schedule can be run."""
    best: tuple[float, Layout] | None = None
    refused = ""
    for name, schedule in SCHEDULES.items():
        if schedule.is_split and is_resharded:
            continue
        some = range(2, _MOST_CHUNKS + 1) if schedule.chunks is None else (schedule.chunks,)
        for chunks in some:
            layout = Layout(name, workers, chunks, microbatches)
            refused = refusal(name, workers, chunks, microbatches) or refused
            if refusal(name, workers, chunks, microbatches):
                continue
            try:
                seconds = seconds_of(layout, units, costs)
            except ConfigurationError as error:
                refused = str(error)
                continue
            if best is None or seconds < _WORTH * best[0]:
                best = seconds, layout
    if best is None:
        raise ConfigurationError(refused)
    return best[1]


def seconds_of(layout: Layout, units: Sequence[Unit], costs: Sequence[Cost]) -> float:
    """Of one step in which each micro-batch takes these costs. Raises `ConfigurationError` for too few blocks."""
    stage_of = cut_evenly(units, [cost.both for cost in costs], layout.stages)
    forward, backward = [0.0] * layout.stages, [0.0] * layout.stages
    for stage, cost in zip(stage_of, costs, strict=True):
        forward[stage] += cost.forward
        backward[stage] += cost.backward / 2
    return clock(layout.order(layout.microbatches), forward, backward, backward).seconds
