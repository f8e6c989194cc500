"""What is kept for a worker in its place: one of each kind, with the type that was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)


@dataclass
class OtherNotes(Notes):
    pass


def test_each_worker_has_one_of_each_kind() -> None:
    def task(wire: Wire) -> tuple[list[str], list[str], bool]:
        place = current.enter(wire, thread_only=True)
        place.context(Notes).lines.append(f"of rank {wire.rank}")
        others = place.context(OtherNotes).lines
        return place.context(Notes).lines, others, place.context(Notes) is place.context(Notes)

    assert VirtualWorld(2).run(task) == [([f"of rank {rank}"], [], True) for rank in range(2)]


def test_one_that_was_made_with_arguments_is_provided_before_it_is_asked_for() -> None:
    def task(wire: Wire) -> bool:
        place, notes = current.enter(wire, thread_only=True), Notes(["made"])
        place.provide(notes)
        with pytest.raises(AssertionError, match="Notes was asked for before"):
            place.provide(Notes())
        return place.context(Notes) is notes

    assert VirtualWorld(1).run(task) == [True]
