"""Folders for sockets: whose they are, and that only those of the dead are cleared away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.wire import socket_folder
from quorate.wire.socket_folder import LONGEST_PATH, clear_abandoned, make_socket_folder

MAKE = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from quorate.wire.socket_folder import make_socket_folder
folder = make_socket_folder()
(folder / "board").write_text("")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_this_users_alone_and_short(place: Path) -> None:
    folder = make_socket_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(str(folder.name) + "/mail-100-100000") < LONGEST_PATH - 20


def test_where_temporary_files_lie_deep_it_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 40)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = make_socket_folder()
    assert folder.parent == Path("/tmp")
    folder.rmdir()


def test_what_a_killed_process_leaves_the_next_one_takes_away(place: Path) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert maker.stdout is not None and maker.stdin is not None
    left = Path(maker.stdout.readline().strip())
    assert (left / "board").exists()
    assert clear_abandoned(place) == [], "its maker lives"
    maker.kill()
    maker.wait()
    maker.stdin.close()
    maker.stdout.close()
    ours = make_socket_folder()
    assert not left.exists()
    assert ours.exists()


def test_a_number_that_another_process_has_now_is_no_proof_of_life(place: Path) -> None:
    alive, system = os.getppid(), socket_folder._system()
    since = socket_folder.started(alive)
    if since is None:
        pytest.skip("when a process was started cannot be told here")
    stale = place / f"quorate-{system}-{alive}-{since - 1}-abcdefgh"
    live = place / f"quorate-{system}-{alive}-{since}-abcdefgh"
    unknown = place / f"quorate-{system}-{alive}-0-abcdefgh"
    for folder in (stale, live, unknown):
        folder.mkdir()
    assert clear_abandoned(place) == [stale]


def test_what_may_be_somebody_elses_stays(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    system, dead = socket_folder._system(), 2**22 + 1
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").write_text("x")
    (place / f"quorate-00000000-{dead}-1-abcdefgh").mkdir()
    (place / "quorate-notes").mkdir()
    (place / f"quorate-{system}-{dead}-1-file").write_text("no folder")
    (place / f"quorate-{system}-{dead}-1-link").symlink_to(elsewhere)
    before = sorted(place.iterdir())
    assert clear_abandoned(place) == []
    assert sorted(place.iterdir()) == before
    assert (elsewhere / "kept").exists()
    assert clear_abandoned(place / "missing") == []


def test_another_users_folder_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / f"quorate-{socket_folder._system()}-{2**22 + 1}-1-abcdefgh").mkdir()
    user = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: user + 1)
    assert clear_abandoned(place) == []
    monkeypatch.undo()
    assert len(clear_abandoned(place)) == 1
