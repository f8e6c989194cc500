"""A launcher in a process of its own, and what can be seen of the processes it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LIMIT = 240.0
"""Seconds: no bar for anything, but the end of a test that would wait for ever."""
PROCESSES = Path("/proc")
"""Where Linux tells of them; elsewhere `ps` does."""

_RUN = """
import sys
from pathlib import Path
from quorate.launch.local.processes import run_shown
from quorate.launch.local.children import Command
from quorate.launch.run.overrides import overrides_here
script, size, folder, grace = sys.argv[1:]
command = Command(script=script, overrides=overrides_here())
sys.exit(run_shown(command, int(size), Path(folder), grace=float(grace)).status)
"""


class Launch:
    """`run_shown` of a script in a process of its own."""

    def __init__(self, script: str, size: int, folder: Path, grace: float) -> None:
        self._process = subprocess.Popen(
            self.words(script, size, folder, grace), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    def words(script: str, size: int, folder: Path, grace: float) -> list[str]:
        """The command that does so."""
        return [sys.executable, "-c", _RUN, script, str(size), str(folder), str(grace)]

    @property
    def said(self) -> str:
        """Its stderr, once it has ended."""
        self._reader.join(LIMIT)
        return "".join(self._said)

    @property
    def pid(self) -> int:
        """Its own."""
        return self._process.pid

    def send(self, signum: int) -> None:
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Its exit status."""
        return self._process.wait(LIMIT)

    def end(self) -> None:
        """Kill it if it is still there; its workers die with it."""
        self._process.kill()
        self._process.wait()
        self._reader.join(LIMIT)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            self._said.extend(stderr)


def all_shown(terminal: int) -> str:
    """What was written to a terminal of `os.openpty`, given its first descriptor, once the other is open nowhere."""
    pieces = []
    with suppress(OSError):  # the end
        while piece := os.read(terminal, 2**16):
            pieces.append(piece)
    return b"".join(pieces).decode()


def is_running(pid: int) -> bool:
    """Whether there is a process `pid` that has not ended; one that nobody has collected has ended."""
    try:
        os.kill(pid, 0)
        if (PROCESSES / "self" / "stat").exists():
            return (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def until(is_so: Callable[[], bool], what: str = "what does not come to pass") -> None:
    """Return as soon as `is_so()`."""
    deadline = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < deadline, f"waited {LIMIT:g} s for {what}"
        time.sleep(0.005)
