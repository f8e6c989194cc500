"""Who is there: a value that events change into another one, and groups of which each member stands for several."""

from __future__ import annotations

from quorate.core.members import Members


def test_each_event_makes_another_value() -> None:
    start = Members(3)
    later = start.after(joined=[4], dead=[1]).after(dead=[0])
    assert (start.alive, start.dead, start.joined) == ((0, 1, 2), frozenset(), frozenset())
    assert (later.alive, later.dead, later.joined) == ((2, 4), {0, 1}, {4})
    assert later.everyone == {0, 1, 2, 4}
    assert [rank for rank in range(6) if rank in later] == [2, 4]
    assert later == Members(3, frozenset([4]), frozenset([0, 1]))


def test_what_ends_before_it_has_joined_is_dead_and_was_never_there() -> None:
    members = Members(2).after(dead=[3])
    assert members.alive == (0, 1) and 3 not in members and members.everyone == {0, 1}
    assert 3 not in members.after(joined=[3])


def test_a_unit_is_dead_with_one_of_its_workers_and_joins_with_all() -> None:
    units = [(0, 1), (2, 3), (4, 5), (6, 7)]
    members = Members(4, joined=frozenset([4, 5, 6]), dead=frozenset([3])).of_units(units, 2)
    assert members == Members(2, joined=frozenset([2]), dead=frozenset([1]))
    assert members.alive == (0, 2)
