"""`--chaos` on a simulated table of processes: the workers that it strikes, spares, and continues."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from quorate.inject.failures import Failure, Failures
from quorate.launch.local.chaos import Chaos, ChaosPlan, began
from quorate.launch.local.newcomers import Newcomers, Room
from quorate.records.records import CHAOS
from quorate.wire.board import MemoryBoard
from quorate.wire.failure import allow_going_on, forbid_going_on, note_training, report_coming

NEVER = Failure(1e9, range(0), "death", 0.0)


class Told(Failures):
    """A schedule that is written down."""

    events: tuple[Failure, ...] = ()

    def schedule(self, workers: int, seed: int) -> Iterator[Failure]:
        return chain(self.events, repeat(NEVER))


class Stage:
    """A launcher's processes, board and clock."""

    def __init__(self, folder: Path, *events: Failure, size: int = 3, goes_on: bool = True) -> None:
        self.folder, self.size, self.time = folder, size, 100.0
        self.board = MemoryBoard()
        self.alive = list(range(size))
        self.sent: list[tuple[float, int, str]] = []
        self.said: list[str] = []
        failures = Told(mtbf=1.0, text="told")
        object.__setattr__(failures, "events", events)
        plan = ChaosPlan(failures, 5)
        self.chaos = Chaos(plan, size, self.board, self, folder, says=self.said.append, now=lambda: self.time)
        self._goes_on = goes_on

    def begin(self) -> None:
        for rank in range(self.size):
            note_training(self.board, rank, is_under_way=True)
        self.chaos.look()
        assert not self.said and began(self.board) is None, "it is not known what a death will be"
        if not self._goes_on:
            forbid_going_on(self.board)
        for _ in range(self.size):
            allow_going_on(self.board, self.size, name="1")
        self.chaos.look()

    def signal(self, rank: int, signum: signal.Signals) -> None:
        self.sent.append((self.time - 100.0, rank, signum.name))

    def at(self, time: float) -> None:
        """Look at that second of the schedule."""
        self.time = 100.0 + time
        self.chaos.look()

    def ended(self, rank: int) -> None:
        self.alive.remove(rank)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / CHAOS).read_text().splitlines()]

    @property
    def done(self) -> list[tuple[str, int, str]]:
        return [(row["kind"], row["rank"], row["done"]) for row in self.rows[1:]]


def death(time: float, *ranks: int) -> Failure:
    return Failure(time, range(ranks[0], ranks[-1] + 1), "death", 2.0)


def stop(time: float, rank: int, seconds: float) -> Failure:
    return Failure(time, range(rank, rank + 1), "stop", seconds)


def test_time_0_is_when_all_train(tmp_path: Path) -> None:
    stage = Stage(tmp_path, death(1.0, 1))
    stage.at(50.0)
    note_training(stage.board, 0, is_under_way=True)
    note_training(stage.board, 1, is_under_way=True)
    stage.at(60.0)
    assert not stage.sent and began(stage.board) is None
    stage.begin()
    assert began(stage.board) == 160.0
    first = stage.rows[0]
    assert (first["kind"], first["failures"], first["seed"], first["workers"]) == ("begin", "told", 5, 3)
    stage.at(60.9)
    assert not stage.sent
    stage.at(61.0)
    assert stage.sent == [(61.0, 1, "SIGKILL")] and stage.done == [("death", 1, "struck")]
    assert stage.chaos.strikes == 1


def test_one_that_ended_before_does_not_hold_up_the_schedule(tmp_path: Path) -> None:
    stage = Stage(tmp_path, death(1.0, 1))
    stage.ended(2)
    stage.begin()
    stage.at(1.5)
    assert stage.sent == [(1.5, 1, "SIGKILL")]


def test_who_is_stopped_goes_on_in_the_order_of_the_schedule(tmp_path: Path) -> None:
    stage = Stage(tmp_path, stop(1.0, 0, 2.0), stop(2.0, 1, 0.5), stop(2.5, 0, 1.5))
    stage.begin()
    for time in (1.0, 2.0, 2.5, 3.0, 4.0):
        stage.at(time)
    assert stage.sent == [
        (1.0, 0, "SIGSTOP"), (2.0, 1, "SIGSTOP"), (2.5, 1, "SIGCONT"), (2.5, 0, "SIGSTOP"), (4.0, 0, "SIGCONT"),
    ]  # fmt: skip
    assert stage.done[-1] == ("stop", 0, "continued")


def test_a_stopped_one_that_dies_does_not_go_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, stop(1.0, 0, 2.0), death(2.0, 0))
    stage.begin()
    for time in (1.0, 2.0, 9.0):
        stage.at(time)
    assert [name for _, _, name in stage.sent] == ["SIGSTOP", "SIGKILL"]


def test_the_end_lets_all_go_on_and_strikes_nobody(tmp_path: Path) -> None:
    stage = Stage(tmp_path, stop(1.0, 0, 60.0), death(2.0, 1))
    stage.begin()
    stage.at(1.0)
    stage.chaos.end()
    stage.at(5.0)
    assert [name for _, _, name in stage.sent] == ["SIGSTOP", "SIGCONT"]


def test_the_dead_are_passed_over_before_and_after_they_are_found(tmp_path: Path) -> None:
    stage = Stage(tmp_path, death(1.0, 1), stop(1.0, 1, 1.0), death(2.0, 1))
    stage.begin()
    stage.at(1.0)
    stage.ended(1)
    stage.at(2.0)
    assert [signal[2] for signal in stage.sent] == ["SIGKILL"]
    assert stage.done == [("death", 1, "struck"), ("stop", 1, "passed over"), ("death", 1, "passed over")]
    assert stage.rows[-1]["why"] == "it has ended"


def test_the_last_one_that_trains_is_never_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, death(1.0, 0, 1, 2), stop(2.0, 2, 1.0))
    stage.begin()
    stage.at(1.0)
    stage.at(2.0)
    assert [(rank, name) for _, rank, name in stage.sent] == [(0, "SIGKILL"), (1, "SIGKILL"), (2, "SIGSTOP")]
    assert stage.rows[3]["done"] == "passed over" and stage.rows[3]["why"] == "it is the last one that trains"


def test_who_has_ended_its_training_is_passed_over_and_does_not_count_as_another(tmp_path: Path) -> None:
    stage = Stage(tmp_path, stop(1.0, 0, 1.0), death(2.0, 1), size=2)
    stage.begin()
    note_training(stage.board, 0, is_under_way=False)
    stage.at(2.0)
    assert not stage.sent
    assert [row["why"] for row in stage.rows[1:]] == ["its training is over", "it is the last one that trains"]


def test_a_place_is_struck_whoever_sits_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path, death(1.0, 1), death(4.0, 1), death(6.0, 1))
    stage.begin()
    stage.at(1.0)
    stage.ended(1)
    stage.time = 103.0
    stage.alive.append(3)
    stage.chaos.started(3, 1)
    note_training(stage.board, 3, is_under_way=True)  # it is in `distribute`, and has not been let in
    stage.at(4.0)
    report_coming(stage.board, 3)
    stage.at(6.0)
    assert [(rank, name) for _, rank, name in stage.sent] == [(1, "SIGKILL"), (3, "SIGKILL")]
    assert [(row["done"], row["rank"], row["worker"]) for row in stage.rows[1:]] == [
        ("struck", 1, 1), ("restarted", 1, 3), ("passed over", 1, 3), ("struck", 1, 3),
    ]  # fmt: skip
    assert stage.rows[3]["why"] == "it has not joined yet"


@pytest.mark.parametrize("goes_on", [True, False])
def test_where_a_death_ends_the_run_it_is_said_at_the_start(tmp_path: Path, goes_on: bool) -> None:
    stage = Stage(tmp_path, goes_on=goes_on)
    stage.begin()
    assert (not stage.said) if goes_on else ("this training stops at a death" in stage.said[0])


def test_a_slow_time_is_told_and_left_to_the_worker(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Failure(1.0, range(2, 3), "slow", 5.0, 4.0))
    stage.begin()
    stage.at(1.2)
    assert not stage.sent
    row = stage.rows[1]
    assert (row["kind"], row["rank"], row["done"], row["due"], row["seconds"], row["factor"]) == (
        "slow", 2, "struck", 1.0, 5.0, 4.0,
    )  # fmt: skip
    assert row["time"] == pytest.approx(1.2)


def test_a_replacement_that_dies_before_it_trains_is_replaced_and_one_that_is_refused_is_not() -> None:
    started: list[tuple[int, int]] = []
    newcomers = Newcomers(MemoryBoard(), 2, Room(restarts=9, more=1), lambda *who: started.append(who))
    newcomers.died(1)
    newcomers.look()
    for rank in (2, 3, 4):
        newcomers.failed_to_join(rank, "was killed by signal 9", by_chance=True)
        newcomers.look()
    assert started == [(2, 1), (3, 1), (4, 1)], "three times"
    newcomers.died(0)
    newcomers.look()
    newcomers.failed_to_join(5, "exited with status 2")
    assert newcomers.look() == []


def test_a_place_stays_empty_until_its_repair() -> None:
    started: list[tuple[int, int]] = []
    now = [0.0]
    newcomers = Newcomers(
        MemoryBoard(), 2, Room(restarts=2), lambda *who: started.append(who), repair=3.0, now=lambda: now[0]
    )
    newcomers.died(1)
    now[0] = 2.0
    newcomers.died(0)
    assert newcomers.look() == []
    now[0] = 3.0
    assert newcomers.look() == [(2, 1)]
    newcomers.died(2)  # there is no room for it any more
    now[0] = 9.0
    assert newcomers.look() == [(3, 0)]
    assert started == [(2, 1), (3, 0)]
