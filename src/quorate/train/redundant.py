"""Strategies under which workers compute the same batches: that data is dealt out so."""

from __future__ import annotations

from collections.abc import Callable

from quorate.core.errors import ConfigurationError
from quorate.core.redundancy import Redundancy
from quorate.core.strategy import Strategy
from quorate.data.context import data_context
from quorate.wire.current import Place


def check_redundancy(strategy: Strategy, place: Place, label: str, *, is_whole: bool) -> None:
    """Raise `ConfigurationError` where data cannot be dealt out as the strategy needs it."""
    data = data_context(place)
    if not _among(strategy, place).is_there:
        return
    if not is_whole:
        raise ConfigurationError(
            f"under {label} workers compute the same batches, each with a whole model; leave out quorate.parallelize"
        )
    if data.made:
        raise ConfigurationError(
            f"quorate.shard was called before quorate.distribute, and has given each worker batches of its own; under "
            f"{label} several compute the same: call quorate.distribute before it"
        )
    if data.redundancy.is_there:
        raise ConfigurationError(
            f"another optimizer was distributed by a strategy under which workers compute the same batches; {label} is "
            "for one optimizer"
        )


def deal_out(strategy: Strategy, place: Place, round_now: Callable[[], int]) -> None:
    """Let loaders give workers the batches that the strategy means; those whose examples others count do not.

    `round_now` gives the newest round that the worker has applied."""
    known, data, wire = _among(strategy, place), data_context(place), place.wire
    if not known.is_there:
        return
    data.redundancy, data.round_now = known, round_now
    if known.groups:
        data.repeats = wire.rank > 0 and known.group_of(wire.rank, wire.size) == known.group_of(
            wire.rank - 1, wire.size
        )


def _among(strategy: Strategy, place: Place) -> Redundancy:
    return Redundancy() if strategy.redundancy is None else strategy.redundancy(place.wire.size)
