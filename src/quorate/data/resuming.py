"""The positions of all loaders of a worker, to keep and to go on from.

Loaders are known by number, in the order of their making, which is the same on every worker and in every run of a
script. They are not kept alive: a loader that nobody has any more has no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from quorate.data.context import data_context
from quorate.data.loader import Loader
from quorate.wire.current import Place


@dataclass
class _Positions:
    """One of each worker."""

    loaders: WeakValueDictionary[int, Loader] = field(default_factory=WeakValueDictionary)
    """By number, from 1."""
    old: Sequence[dict[str, Any]] = ()
    """Of all old workers, from a checkpoint."""
    entered: dict[str, Any] = field(default_factory=dict)
    """Of another worker, for one that has joined."""


def loaders(place: Place) -> WeakValueDictionary[int, Loader]:
    """The worker's, by number."""
    return place.context(_Positions).loaders


def positions(place: Place) -> dict[str, Any]:
    """`Loader.state_dict()` of each of the worker's loaders, by number; plain JSON values."""
    return {str(number): loader.state_dict() for number, loader in sorted(loaders(place).items())}


def go_on(place: Place, workers: Sequence[dict[str, Any]]) -> None:
    """Set every loader to where it was: `workers` are the `positions` of all old workers, equal on all new ones.

    A loader that is made later goes on when it is made. Raises as `Loader.load_state_dicts`.
    """
    place.context(_Positions).old = list(workers)
    for number, loader in sorted(loaders(place).items()):
        _place_at(loader, number, workers)


def whereabouts(place: Place) -> dict[str, Any]:
    """Where one that joins is to begin, as this worker is now; plain JSON values."""
    limit = data_context(place).limit
    told = {str(number): loader.whereabouts() for number, loader in sorted(loaders(place).items())}
    return {"loaders": told, "taken": 0 if limit is None else limit.taken}


def enter_at(place: Place, about: dict[str, Any]) -> None:
    """Begin where another worker is; a loader that is made later, when it is made."""
    place.context(_Positions).entered = about["loaders"]
    for number, loader in sorted(loaders(place).items()):
        if str(number) in about["loaders"]:
            loader.enter_at(about["loaders"][str(number)])
    limit = data_context(place).limit
    if limit is not None:
        limit.enter_at(about["taken"])


def add(place: Place, number: int, loader: Loader) -> None:
    """A loader was made, the `number`-th of its worker."""
    loaders(place)[number] = loader
    entered = place.context(_Positions).entered
    if str(number) in entered:
        loader.enter_at(entered[str(number)])
        return
    _place_at(loader, number, place.context(_Positions).old)


def _place_at(loader: Loader, number: int, workers: Sequence[dict[str, Any]]) -> None:
    found = [worker[str(number)] for worker in workers if str(number) in worker]
    states = list({state.get("rank"): state for state in found}.values())  # workers that share batches share positions
    if states:
        loader.load_state_dicts(states)
