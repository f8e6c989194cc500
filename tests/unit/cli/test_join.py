"""`quorate join`: what it asks of a launcher, what it says of what comes, and its wrong inputs."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.cli.main import main
from quorate.launch.local.newcomers import Newcomers, Room, open_to_all
from quorate.wire.board_server import BoardServer
from quorate.wire.failure import report_coming
from quorate.wire.socket_folder import make_socket_folder


class Launcher:
    """One under way with two workers, as far as `quorate join` sees it; whom it starts comes at once, or ends."""

    def __init__(self, server: BoardServer, room: Room, *, comes: bool = True) -> None:
        self.server, self._over = server, threading.Event()
        self._comes = comes
        self.newcomers = Newcomers(server.board, 2, room, self._start)
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _start(self, rank: int, replaced_rank: int) -> None:
        if self._comes:
            report_coming(self.server.board, rank)
        else:
            self.newcomers.failed_to_join(rank, "exited with status 2")

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.newcomers.look()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"script": "train.py", "world": "real"}))
    return run


@pytest.fixture
def server() -> Iterator[BoardServer]:
    folder = make_socket_folder()
    server = BoardServer(folder / "board")
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder)


def joined(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["join", *words])
    return ended.value.code


def test_as_many_come_as_there_is_room_for(
    folder: Path, server: BoardServer, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(server, Room(more=2))
    try:
        with open_to_all(folder, server.path):
            assert joined("first") == 0
            assert joined("first", "-n", "2") == 2
    finally:
        launcher.end()
    said = capsys.readouterr()
    assert [line.partition(" after")[0] for line in said.out.splitlines()] == [
        "rank 2 has joined runs/first",
        "rank 3 has joined runs/first",
    ]
    assert said.err.endswith("quorate: no more workers can join: the run was started with --max-joins 2\n")


def test_a_run_that_only_restarts_has_no_room(
    folder: Path, server: BoardServer, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(server, Room(restarts=1))
    try:
        with open_to_all(folder, server.path):
            assert joined("first") == 2
    finally:
        launcher.end()
    assert "the run was started without --max-joins" in capsys.readouterr().err


def test_one_that_ends_before_it_trains(folder: Path, server: BoardServer, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = Launcher(server, Room(more=1), comes=False)
    try:
        with open_to_all(folder, server.path):
            assert joined("first") == 1
    finally:
        launcher.end()
    assert "quorate: rank 2 has ended before it could join; its log is" in capsys.readouterr().err


def test_one_that_takes_too_long(
    folder: Path, server: BoardServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.board.set("newcomers/said/1", b"rank 2")
    with open_to_all(folder, server.path):
        assert joined("first", "--timeout", "1s") == 1
    assert "quorate: rank 2 has not joined yet; it goes on trying; its log is" in capsys.readouterr().err


def test_a_launcher_that_ends_meanwhile(
    folder: Path, server: BoardServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.cli.join._ANSWER_SECONDS", 0.05)
    with open_to_all(folder, server.path):
        assert joined("first") == 1, "nobody answers"
    assert "quorate: the run in runs/first has ended or is about to end" in capsys.readouterr().err


def test_wrong_input_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    door = folder / "board.address"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind("gone")  # of a launcher that was killed: nobody listens
    for words, written, sentence in (
        (["second"], None, 'there is no run "second" to join (looked for second/run.json and runs/second/run.json)'),
        ([""], None, 'there is no run "" to join'),
        (["first"], None, "no run that workers can join is running in runs/first; start one with"),
        (["first"], b"gone", "no run that workers can join is running in runs/first"),
        (["first"], b"\xff\x00", "no run that workers can join is running in runs/first"),
        (["first", "-n", "0"], None, "-n must be at least 1"),
        (["first", "--timeout", "0"], None, "--timeout 0: the time must be at least 1s"),
        (["first", "--timeout", "20"], None, '"20" in "--timeout 20" has no unit: 20ms or 20s?'),
    ):
        if written is not None:
            door.write_bytes(written)
        assert joined(*words) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"quorate: {sentence}") and said.count("\n") == 1
