"""Groups whose members stand for several workers: such a member is dead where one of them is, and joins with all."""

from __future__ import annotations

import pytest

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.failure import allow_going_on
from quorate.wire.group import GroupWire
from quorate.wire.virtual.world import VirtualWorld


def column(wire: Wire) -> GroupWire:
    units = [[first, first + 1] for first in range(0, wire.max_size, 2)]
    return GroupWire(wire.channel("column"), [unit[wire.rank % 2] for unit in units], units, 2)


def outlives(wire: Wire) -> tuple[list[int], list[int], list[list[int]]]:
    """Rank 3 dies: who is dead and alive in this worker's column, and what it was told."""
    group = column(wire)
    group.tolerate_deaths("news")
    allow_going_on(wire.board, wire.size, name="x")
    wire.clock.sleep(0.1)
    if wire.rank == 3:
        wire.crash()
    wire.clock.sleep(1.0)
    _, message = group.receive(None, "news").wait()
    return sorted(group.dead), group.alive, [list(message.header["gone"])]


def test_a_member_is_dead_where_one_of_its_workers_is() -> None:
    results = [outcome.result for outcome in VirtualWorld(4, timeout=20.0).outcomes(outlives)]
    assert results == [([1], [0], [[1]]), ([1], [0], [[1]]), ([1], [0], [[1]]), None]


def joins(wire: Wire) -> list[list[int]]:
    """Ranks 4 and 5 come, one after the other: who has joined in this worker's column, before, between, and after."""
    group, joined = column(wire), list[list[int]]()
    wire.tolerate_deaths("news")
    for rank in (3, 4, 5):
        if wire.rank == rank and rank > 3:
            group.enter()
        wire.clock.sleep(0.5)
        joined.append(sorted(group.joined))
        wire.clock.sleep(0.5)
    return joined


def test_a_member_has_joined_with_all_its_workers() -> None:
    results = VirtualWorld(4, joiners=2, timeout=20.0).run(joins)
    assert results == [[[], [], [2]]] * 6


def test_the_size_is_of_those_that_are_there() -> None:
    def look(wire: Wire) -> tuple[int, int, bool]:
        group = column(wire)
        again = group.channel("again")
        assert (again.size, again.max_size) == (group.size, group.max_size)
        return group.size, group.max_size, group.is_newcomer

    results = VirtualWorld(4, joiners=2, timeout=20.0).run(look)
    assert results == [(2, 3, False)] * 4 + [(2, 3, True)] * 2


def test_without_units_no_group_outlives_anybody() -> None:
    def look(wire: Wire) -> None:
        with pytest.raises(ConfigurationError, match="not a group alone"):
            wire.group([0, 1]).tolerate_deaths("news")

    VirtualWorld(2, timeout=20.0).run(look)
