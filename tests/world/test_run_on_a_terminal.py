"""`quorate run` on a terminal: progress below what the script prints, which stays as it is."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from pathlib import Path

import pytest

from tests.support.launching import LIMIT
from tests.support.programs import QUORATE, Program
from tests.support.terminals import Terminal

SCRIPT = """
import os, sys
import torch, quorate
from tests.support.launching import LIMIT

world = quorate.join()
model = torch.nn.Linear(4, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
print("begins")
for step in range(int(sys.argv[1]) if sys.argv[1:] else 40):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 30 and world.is_first:
        print("asks")
        while not os.path.exists("asks"):
            pass  # a virtual worker would sleep in virtual time
        name = input("name? ")
        print("hello", name)
optimizer.finish()
"""


class Session:
    """A program on a terminal of its own, and what a person sees there."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.seen, self.written = Terminal(100, 30), b""
        with open(theirs, "r+b", buffering=0) as end:
            env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
            self.program = Program([*QUORATE, "run", *words], cwd=folder, env=env, stdin=end, stdout=end, stderr=end)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait()
        os.close(self._ours)

    def until(self, words: str) -> None:
        """Return when they are seen."""
        end = time.monotonic() + LIMIT
        while words not in "\n".join(self.seen.lines):
            assert time.monotonic() < end, self.seen.lines
            self._read()
        self._read_all()

    def _read_all(self) -> None:
        """What is under way: lines come in several pieces."""
        while select.select([self._ours], [], [], 0.05)[0] and self._read():
            pass

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self._ours, 2**16)
        except OSError:  # the other end is closed
            return False
        self.written += piece
        self.seen.feed(piece)
        return bool(piece)

    def types(self, words: str) -> None:
        os.write(self._ours, words.encode())

    def ends(self) -> int:
        """Read to the end; the exit status."""
        while self._read() and self.program.poll() is None:
            pass
        self._read_all()
        return self.program.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_progress_is_below_what_the_script_prints(folder: Path) -> None:
    with Session(folder, "--virtual", "2", "--name", "x", "train.py") as session:
        session.until("steps/s")
        lines = session.seen.lines
        assert lines[-3].startswith("runs/x (virtual time) ") and lines[-2].startswith("all-reduce · step ")
        assert lines[-4] == "asks"
        (folder / "asks").touch()
        session.until("name?")
        assert session.seen.cursor == ("name? ", 6) and session.seen.lines[-1] == "name?", "the line is the script's"
        session.types("ada\n")
        assert session.ends() == 0
        shown = [line for line in session.seen.lines if not line.startswith("quorate:")]
        assert shown[:4] == ["begins", "asks", "name? ada", "hello ada"]
        assert (
            session.seen.lines[-1].startswith("quorate: 40 steps in ") or "records in runs/x" in session.seen.lines[-1]
        )


def test_without_progress(folder: Path) -> None:
    with Session(folder, "--virtual", "2", "--name", "y", "--no-progress", "train.py") as session:
        (folder / "asks").touch()
        session.until("name?")
        session.types("ada\n")
        assert session.ends() == 0
        assert b"\x1b[" not in session.written


def test_an_interrupt_takes_it_away(folder: Path) -> None:
    with Session(folder, "-n", "2", "--name", "z", "train.py", "1000000") as session:  # it ends when it is asked to
        session.until("steps/s")
        (folder / "asks").touch()
        session.until("name?")
        os.kill(session.program.pid, signal.SIGINT)
        session.types("ada\n")
        assert session.ends() == 130
        assert not [line for line in session.seen.lines if line.startswith(("all-reduce · step ", "runs/z"))], (
            session.seen.lines
        )
        assert session.seen.lines[-1].endswith("records in runs/z") or "records in" in "".join(session.seen.lines[-2:])
