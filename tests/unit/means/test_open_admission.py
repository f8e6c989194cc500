"""Who joins where no step brings all together: all that rest together agree on who that is."""

from __future__ import annotations

from typing import Any

from quorate.core.contracts import Wire
from quorate.means.admission import OpenAdmission, wait_outside
from quorate.wire.virtual.world import VirtualWorld


def admissions(wire: Wire) -> list[OpenAdmission]:
    """Return the admissions of two workers that train and two that join, all on one board."""
    made = []
    for rank in range(4):
        rounds: Any = type("Rounds", (), {"board": wire.board, "name": "t", "rank": rank, "size": 2, "max_size": 4})
        made.append(OpenAdmission(rounds))
    return made


def in_world(task: Any) -> None:
    VirtualWorld(1).run(lambda wire: task(wire, *admissions(wire)))


def test_who_came_before_a_rest_takes_part_in_it() -> None:
    def task(wire: Wire, first: OpenAdmission, second: OpenAdmission, third: OpenAdmission, _: OpenAdmission) -> None:
        assert third.enter(0) == (2,)
        assert first.close() == second.close() == third.close() == (2,)
        assert first.era == second.era == third.era == 1

    in_world(task)


def test_nobody_comes_while_some_rest() -> None:
    def task(wire: Wire, first: OpenAdmission, second: OpenAdmission, third: OpenAdmission, _: OpenAdmission) -> None:
        assert first.close() == ()
        assert third.enter(0) is None
        assert second.close() == ()
        assert third.enter(1) is None, "nobody has stepped yet"
        assert first.waiting() == []
        assert third.enter(1) == (2,)

    in_world(task)


def test_two_rests_without_a_step_between_them() -> None:
    """One has gone on to the second of them while the other one steps: it stays closed."""

    def task(wire: Wire, first: OpenAdmission, second: OpenAdmission, third: OpenAdmission, _: OpenAdmission) -> None:
        first.close(), second.close()
        assert first.close() == ()
        second.waiting()  # it makes a step in the era that the first one has closed
        assert third.enter(1) is None
        assert second.close() == ()

    in_world(task)


def test_a_copy_of_an_older_era_is_worth_nothing() -> None:
    def task(wire: Wire, first: OpenAdmission, second: OpenAdmission, third: OpenAdmission, _: OpenAdmission) -> None:
        first.close(), second.close(), first.waiting()
        assert third.enter(0) is None
        assert third.enter(1) == (2,)

    in_world(task)


def test_each_that_waits_is_asked_in_once_in_an_era() -> None:
    def task(
        wire: Wire, first: OpenAdmission, second: OpenAdmission, third: OpenAdmission, last: OpenAdmission
    ) -> None:
        wait_outside(wire.board, "t", 2)
        wait_outside(wire.board, "t", 3)
        assert first.waiting() == [2, 3]
        assert first.waiting() == []
        assert third.enter(0) == (2,)
        for admission in (first, second, third):
            admission.close()
        assert first.waiting() == [3], "its copy was too old"
        assert last.enter(1) == (2, 3)

    in_world(task)
