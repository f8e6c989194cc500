"""The positions of all loaders of a worker, to save and to continue from.

Loaders are identified by number, in the order of their making, which is the same on every worker and in every run of a
script. They are not kept alive: a loader without references has no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from quorate.data.context import DataContext
from quorate.data.loader import Loader, Starts


@dataclass
class Loaders:
    """The loaders of one worker."""

    by_number: WeakValueDictionary[int, Loader] = field(default_factory=WeakValueDictionary)
    """From 1."""
    _old: Sequence[dict[str, Any]] = ()
    """Positions of all old workers, from a checkpoint."""
    _entered: dict[str, Any] = field(default_factory=dict)
    """The position of another worker, for a worker that has joined."""

    def positions(self) -> dict[str, Any]:
        """Return `Loader.state_dict()` of each loader, by number; plain JSON values."""
        return {str(number): loader.state_dict() for number, loader in sorted(self.by_number.items())}

    def go_on(self, workers: Sequence[dict[str, Any]]) -> None:
        """Restore every loader: `workers` are the `positions` of all old workers, equal on all new ones. A loader that
        is made later continues when it is made. Raises as `Loader.load_state_dicts`."""
        self._old = list(workers)
        for number, loader in sorted(self.by_number.items()):
            _place_at(loader, number, workers)

    def whereabouts(self, context: DataContext) -> dict[str, Any]:
        """Return the position from which a joining worker begins, as plain JSON values."""
        limit, division = context.limit, context.division
        by_number = {str(number): loader.whereabouts() for number, loader in sorted(self.by_number.items())}
        members = None if division is None else list(division.members)
        return {"loaders": by_number, "taken": 0 if limit is None else limit.taken, "members": members}

    def enter_at(self, about: dict[str, Any], context: DataContext) -> None:
        """Begin where another worker is; a loader that is made later, when it is made."""
        self._entered = about["loaders"]
        for number, loader in sorted(self.by_number.items()):
            if str(number) in about["loaders"]:
                loader.enter_at(about["loaders"][str(number)])
        if context.limit is not None:
            context.limit.enter_at(about["taken"])
        if context.division is not None:
            context.division.enter(about["members"])

    def add(self, number: int, loader: Loader, starts: Starts) -> None:
        """Register a loader, the `number`-th of its worker."""
        self.by_number[number] = loader
        if str(number) in self._entered:
            loader.enter_at(self._entered[str(number)])
        elif not starts.lacks_position:
            _place_at(loader, number, self._old)


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
