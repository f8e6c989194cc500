"""The positions of all loaders of a worker, to save and to continue from.

Loaders are identified by number, in the order of their making, which is the same on every worker and in every run of a
script. They are not kept alive: a loader without references has no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from quorate.data.context import data_context
from quorate.data.loader import Loader, Starts
from quorate.wire.current import Place


@dataclass
class _Positions:
    """The positions of one worker."""

    loaders: WeakValueDictionary[int, Loader] = field(default_factory=WeakValueDictionary)
    """By number, from 1."""
    old: Sequence[dict[str, Any]] = ()
    """Positions of all old workers, from a checkpoint."""
    entered: dict[str, Any] = field(default_factory=dict)
    """The position of another worker, for a worker that has joined."""


def loaders(place: Place) -> WeakValueDictionary[int, Loader]:
    """Return the worker's loaders, by number."""
    return place.context(_Positions).loaders


def positions(place: Place) -> dict[str, Any]:
    """Return `Loader.state_dict()` of each of the worker's loaders, by number; plain JSON values."""
    return {str(number): loader.state_dict() for number, loader in sorted(loaders(place).items())}


def go_on(place: Place, workers: Sequence[dict[str, Any]]) -> None:
    """Restore every loader: `workers` are the `positions` of all old workers, equal on all new ones. A loader that is
    made later continues when it is made. Raises as `Loader.load_state_dicts`."""
    place.context(_Positions).old = list(workers)
    for number, loader in sorted(loaders(place).items()):
        _place_at(loader, number, workers)


def whereabouts(place: Place) -> dict[str, Any]:
    """Return the position from which a joining worker begins, as plain JSON values."""
    limit, division = data_context(place).limit, data_context(place).division
    by_number = {str(number): loader.whereabouts() for number, loader in sorted(loaders(place).items())}
    members = None if division is None else list(division.members)
    return {"loaders": by_number, "taken": 0 if limit is None else limit.taken, "members": members}


def enter_at(place: Place, about: dict[str, Any]) -> None:
    """Begin where another worker is; a loader that is made later, when it is made."""
    place.context(_Positions).entered = about["loaders"]
    for number, loader in sorted(loaders(place).items()):
        if str(number) in about["loaders"]:
            loader.enter_at(about["loaders"][str(number)])
    limit, division = data_context(place).limit, data_context(place).division
    if limit is not None:
        limit.enter_at(about["taken"])
    if division is not None:
        division.enter(about["members"])


def add(place: Place, number: int, loader: Loader) -> None:
    """Register a loader, the `number`-th of its worker."""
    loaders(place)[number] = loader
    entered = place.context(_Positions).entered
    if str(number) in entered:
        loader.enter_at(entered[str(number)])
        return
    if not place.context(Starts).lacks_position:
        _place_at(loader, number, place.context(_Positions).old)


def _place_at(loader: Loader, number: int, workers: Sequence[dict[str, Any]]) -> None:
    saved = [worker[str(number)] for worker in workers if str(number) in worker]
    states = list({state.get("rank"): state for state in saved}.values())  # workers that share batches share positions
    if states:
        loader.load_state_dicts(states)
        return
    later = [other for worker in workers for other in worker if int(other) > number and worker[other].get("trained")]
    if later:
        loader.lacks_position(
            f"the checkpoint has no position of this script's loader {number}, but one of its loader {later[0]}, so "
            "the epoch begins from its start. Call quorate.loader once for each dataset, before the loop"
        )
