"""Rows on their way from one host to another: what is there already, what is lost, and who takes over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.core.contracts import Message
from quorate.launch.worker import record_transfer
from quorate.launch.worker.record_transfer import RecordTransfer
from quorate.records.records import records_of
from quorate.wire.board import MemoryBoard
from quorate.wire.boxes import Inbox
from quorate.wire.members import GONE
from tests.support.launching import until


class World:
    """Workers of this process; `homes` says by rank the host, and each host has a folder of its own."""

    def __init__(self, folder: Path, homes: str) -> None:
        self._folder, self._homes, self.board = folder, homes, MemoryBoard()
        self.inboxes = [Inbox() for _ in homes]
        self.transfers: dict[int, RecordTransfer] = {}

    def folder(self, rank: int) -> Path:
        """Return the folder of its rows."""
        folder = self._folder / self._homes[rank]
        folder.mkdir(exist_ok=True)
        return folder

    def begin(self, rank: int, folder: Path | None = None) -> RecordTransfer:
        """Its thread."""

        def send(message: Message, to: int, tag: str) -> None:
            header = json.loads(json.dumps(dict(message.header)))
            self.inboxes[to].put(rank, tag, Message(message.tensors, header))

        endpoint: Any = SimpleNamespace(
            rank=rank,
            size=len(self._homes),
            board=self.board,
            inbox=self.inboxes[rank],
            mailbox=SimpleNamespace(send=send),
            host_of=lambda peer: self._homes.index(self._homes[peer]),
        )
        self.transfers[rank] = RecordTransfer(endpoint, folder or self.folder(rank))
        return self.transfers[rank]

    def write(self, rank: int, text: str) -> None:
        """Some rows."""
        with open(records_of(self.folder(rank), rank), "a") as file:
            file.write(text)

    def at_home(self, rank: int) -> str:
        """Return its rows that have arrived there."""
        path = records_of(self.folder(0), rank)
        return path.read_text() if path.exists() else ""

    def kill(self, rank: int) -> None:
        """The others know."""
        self.transfers[rank].leave()
        self.transfers[rank]._thread.join(10.0)
        self.board.set(GONE, json.dumps([{"rank": rank, "host": "h", "reason": "was killed"}]).encode())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], World]]:
    monkeypatch.setattr(record_transfer, "EVERY", 0.02)
    monkeypatch.setattr(record_transfer, "LOOKS_FOR", 0.05)
    worlds: list[World] = []

    def make(homes: str) -> World:
        worlds.append(World(tmp_path, homes))
        return worlds[0]

    yield make
    for transfer in reversed(worlds[0].transfers.values()):
        transfer.close(10.0)
        transfer.leave()
        transfer._thread.join(10.0)


def test_rows_come_while_they_are_written_and_all_by_the_end(
    made: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_transfer, "BATCH", 50)
    world = made("ab")
    world.begin(0)
    transfer = world.begin(1)
    world.write(1, "one\n" * 100)
    until(lambda: world.at_home(1) == "one\n" * 100)
    world.write(1, "two\n" * 100)
    transfer.close(20.0)
    assert world.at_home(1) == "one\n" * 100 + "two\n" * 100
    assert world.at_home(1) == records_of(world.folder(1), 1).read_text()


def test_hosts_with_one_folder_send_nothing(made: Callable[[str], World]) -> None:
    world = made("ab")
    world.begin(0)
    transfer = world.begin(1, world.folder(0))
    with open(records_of(world.folder(0), 1), "a") as file:
        file.write("one\n")
    transfer.close(20.0)
    assert world.at_home(1) == "one\n"
    world.transfers[0].wait_for_others(20.0)  # at once
    world.transfers[0].leave()
    assert [path.name for path in world.folder(0).iterdir()] == ["rank-1.jsonl"]


def test_what_an_earlier_session_left_stays(made: Callable[[str], World]) -> None:
    """Its last line was cut off, and the rank was on another host then."""
    world = made("ab")
    records_of(world.folder(0), 1).write_text("before\ncut")
    world.write(1, "of another run here\n")
    world.begin(0)
    transfer = world.begin(1)
    world.write(1, "one\n")
    transfer.close(20.0)
    assert world.at_home(1) == "before\ncut\none\n"


@pytest.mark.parametrize(("hosts", "keeper"), [("aab", 0), ("abc", 1)], ids=["beside it", "on another host"])
def test_another_one_takes_over_from_a_keeper_and_nothing_comes_twice(
    made: Callable[[str], World], hosts: str, keeper: int
) -> None:
    world = made(hosts)
    world.begin(0)
    world.begin(1)
    transfer = world.begin(2)
    world.write(2, "one\n")
    until(lambda: world.at_home(2) == "one\n")
    world.kill(0)
    world.write(2, "two\n")
    transfer.close(20.0)
    assert records_of(world.folder(keeper), 2).read_text() == "one\ntwo\n"


def test_a_keeper_that_can_write_no_more_says_so_once(
    made: Callable[[str], World], capsys: pytest.CaptureFixture[str]
) -> None:
    world = made("abb")
    for rank in (1, 2):
        os.makedirs(records_of(world.folder(0), rank))  # no file can be opened there
    world.begin(0)
    transfers = [world.begin(rank) for rank in (1, 2)]
    for rank, transfer in enumerate(transfers, 1):
        world.write(rank, "one\n")
        transfer.close(3600.0)  # it does not wait in vain
    assert capsys.readouterr().err.count("cannot store more rows (Is a directory); other hosts keep theirs") == 1
