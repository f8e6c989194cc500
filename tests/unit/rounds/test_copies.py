"""Who is let in, and when: the leader's part, and the copies that a worker gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quorate.rounds.entering import copies_wanted
from quorate.rounds.holdings import AGAIN_SECONDS, Copies
from quorate.rounds.leader import Entrance
from quorate.rounds.messages import Note


def entrance(newest: int = 5, era: int = 0) -> Entrance:
    log: Any = SimpleNamespace(newest=newest, era=era)
    return Entrance(log)


def note(kind: Any, logged: int = 5, era: int = 0) -> tuple[Note, int]:
    return Note(kind, era=era), logged


def test_who_asks_for_a_copy_gets_one_and_is_not_let_in() -> None:
    door = entrance()
    assert door.knocked(3, *note("copy")) == -1
    assert door.let_in(6, {3: 5}, is_pause=False) == ()


def test_who_has_all_rounds_is_let_in_once() -> None:
    door = entrance()
    assert door.knocked(3, *note("enter")) == 5, "who misses nothing: it is only noted"
    assert door.let_in(6, {3: 5}, is_pause=False) == (3,)
    assert door.let_in(7, {3: 6}, is_pause=False) == ()


def test_who_lacks_rounds_gets_them_first() -> None:
    door = entrance()
    assert door.knocked(3, *note("enter", logged=3)) == 3
    assert door.let_in(6, {3: 4}, is_pause=False) == ()
    assert door.let_in(7, {3: 6}, is_pause=False) == (3,)


def test_a_copy_from_before_all_had_settled_is_worth_nothing() -> None:
    door = entrance(era=4)
    assert door.knocked(3, *note("enter", era=0)) == -1
    assert door.let_in(6, {3: 5}, is_pause=False) == ()


def test_nobody_is_let_in_where_all_settle_nor_right_after_with_the_old_copy() -> None:
    door = entrance()
    door.knocked(3, *note("enter"))
    assert door.let_in(6, {3: 5}, is_pause=True) == ()
    assert door.let_in(7, {3: 6}, is_pause=False) == ()


def test_the_dead_are_not_let_in() -> None:
    door = entrance()
    door.knocked(3, *note("enter"))
    door.have_died({3})
    assert door.let_in(6, {3: 5}, is_pause=False) == ()


def test_who_says_something_else_asks_for_nothing() -> None:
    assert entrance().knocked(3, *note("call")) is None


def test_a_worker_that_settles_gives_no_replica_to_one_that_joins() -> None:
    member: Any = SimpleNamespace(copies_wanted=[1], entries_wanted=[3])
    assert list(copies_wanted(member, is_pause=True)) == [(1, False)] and member.entries_wanted == [3]
    assert list(copies_wanted(member, is_pause=False)) == [(3, True)] and member.entries_wanted == []


def test_rounds_are_kept_while_a_copy_is_on_its_way() -> None:
    copies = Copies(0)
    assert copies.needs(0.0) is None
    copies.source_for(1, [0, 2], 0.0, 7)
    copies.source_for(2, [0, 1], 1.0, 9)
    assert copies.needs(1.5) == 7
    copies.ended(1)
    assert copies.needs(1.5) == 9
    assert copies.needs(1.0 + AGAIN_SECONDS) is None


def test_a_copy_comes_from_the_same_host_or_not_all_from_the_leader() -> None:
    def sources(hosts: list[int], to: int) -> list[int | None]:
        copies, fit = Copies(0, hosts.__getitem__), [rank for rank in range(6) if rank != to]
        return [copies.source_for(to, fit, AGAIN_SECONDS * again, 1) for again in range(3)]

    assert sources([0] * 6, 4) == [0, 1, 2]
    assert sources([0, 0, 0, 3, 3, 3], 4) == [5, 3, 0]
    assert sources([0, 1, 2, 3, 4, 5], 4) == [5, 0, 1]
    assert sources([0, 1, 2, 3, 4, 5], 2) == [3, 4, 5]


def test_one_that_no_round_lets_in_asks_for_a_round() -> None:
    door = entrance()
    door.knocked(2, *note("enter"))
    assert not door.calls({2: 5})
    door.knocked(2, Note("enter", hastens=True), 5)
    assert door.calls({2: 5}) and not door.calls({2: -1})
    assert door.let_in(6, {2: 5}, is_pause=False) == (2,)
    assert not door.calls({2: 5})
