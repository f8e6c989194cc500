"""News of a worker for a launcher with a board of its own, and when they are sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quorate.core.errors import PeerFailed
from quorate.launch.worker.signals import LauncherNews
from quorate.wire.board import MemoryBoard
from quorate.wire.failure import (
    allow_going_on,
    forbid_going_on,
    is_in_training,
    is_survived,
    note_training,
    report_death,
    stops_at_deaths,
)
from quorate.wire.members import read_deaths


def test_both_boards_know_what_either_does() -> None:
    launcher, ours = MemoryBoard(), MemoryBoard()
    wire: Any = SimpleNamespace(rank=1, board=ours)
    news = LauncherNews(launcher)
    note_training(ours, 1, is_under_way=True)
    news.pass_on(wire)
    assert is_in_training(launcher, 1)
    note_training(ours, 1, is_under_way=False)
    news.try_to_pass_on(wire)
    assert not is_in_training(launcher, 1)


def test_deaths_that_the_launcher_has_seen_come_to_the_workers() -> None:
    launcher, ours = MemoryBoard(), MemoryBoard()
    wire: Any = SimpleNamespace(rank=1, board=ours)
    for _ in range(3):
        allow_going_on(ours, 3, name="1")
    LauncherNews(launcher).pass_on(wire)
    assert is_survived(launcher, 2)
    report_death(launcher, 2, "was killed by signal 9 (SIGKILL)", "second")
    LauncherNews(launcher).pass_on(wire)
    assert [death.rank for death in read_deaths(ours)] == [2]


def test_what_needs_everyone_counts_also_where_deaths_were_outlived_before() -> None:
    launcher, ours = MemoryBoard(), MemoryBoard()
    wire: Any = SimpleNamespace(rank=1, board=ours)
    allow_going_on(ours, 1, name="1")
    LauncherNews(launcher).pass_on(wire)
    forbid_going_on(ours)
    LauncherNews(launcher).pass_on(wire)
    assert stops_at_deaths(launcher) is True


def test_a_launcher_that_is_gone_stops_nobody() -> None:
    class Gone(MemoryBoard):
        def peek(self, key: str) -> bytes | None:
            raise PeerFailed("the launcher has ended")

        get = peek

    wire: Any = SimpleNamespace(rank=1, board=MemoryBoard())
    note_training(wire.board, 1, is_under_way=True)
    LauncherNews(Gone()).try_to_pass_on(wire)
    LauncherNews().try_to_pass_on(wire)
