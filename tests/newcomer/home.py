"""An empty home with environments of its own, in which commands run as if typed by a newcomer."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

KEPT = re.compile(r"(PATH|LANG|LC_\w+|TERM|TMPDIR|(HTTPS?|NO)_PROXY|PIP_\w+|SSL_\w+)", re.IGNORECASE)
"""Variables that a newcomer's shell has, too."""
COLUMNS = 80
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


@dataclass(frozen=True)
class Ended:
    """The exit status of a command, None if it was stopped at its limit, and what it printed."""

    status: int | None
    output: str


class Home:
    """A folder with an empty `home`. Without `is_full`, environments see the packages of this one, except Quorate."""

    def __init__(self, folder: Path, *, is_full: bool) -> None:
        self.folder, self.is_full = folder, is_full
        (folder / "home").mkdir()
        self._packages = folder / "packages"
        self._packages.mkdir()
        folders = [Path(place) for place in sys.path if place.endswith("site-packages")]
        packages = {package.name: package for place in reversed(folders) for package in place.iterdir()}
        for name, package in packages.items():
            if not re.search(r"quorate|^pip\b|^__pycache__|\.pth$", name):
                (self._packages / name).symlink_to(package)

    def environment(self, name: str) -> Path:
        """Make a virtual environment, and return its folder of programs."""
        place = self.folder / name
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        if not self.is_full:
            packages = next(place.glob("lib/python*/site-packages"))
            (packages / "others.pth").write_text(f"{self._packages}\n")
        return place / "bin"

    def run(self, command: str, programs: Path, cwd: Path, *, seconds: float = 300.0, **variables: str) -> Ended:
        """Run a shell command; stdout and stderr are one pipe."""
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=cwd, env=self._variables(programs) | variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Ended(None, f"{output}\nstopped after {seconds:g} s")
        return Ended(process.returncode, output)

    def show(self, command: str, programs: Path, cwd: Path, *, seconds: float = 120.0) -> Ended:
        """Run a shell command on a terminal of 80 columns, without colours; stderr is added if it failed."""
        ours, theirs = pty.openpty()
        errors = self.folder / "errors"
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        with errors.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=cwd, env=self._variables(programs) | {"TERM": "xterm", "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL, stdout=theirs, stderr=file, start_new_session=True,
            )  # fmt: skip
        os.close(theirs)
        os.set_blocking(ours, False)
        shown, until = b"", time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until:
            shown += _read(ours)
            time.sleep(0.02)
        shown += _read(ours)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait() if time.monotonic() < until else None
        os.close(ours)
        shown += errors.read_bytes() if status else b""
        return Ended(status, _CONTROL.sub("", shown.decode(errors="replace")))

    def _variables(self, programs: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
        return kept | {"HOME": str(self.folder / "home"), "PATH": f"{programs}{os.pathsep}{kept['PATH']}"}


def _read(terminal: int) -> bytes:
    """Return all bytes that a terminal has by now."""
    parts = []
    try:
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    except OSError:  # nothing more yet, or the other end is closed
        pass
    return b"".join(parts)


def too_wide(shown: str) -> list[str]:
    """Return the lines of tables that are wider than the terminal; sentences are wrapped by it."""
    return [line for line in shown.splitlines() if len(line) > COLUMNS and re.search(r"\S  +\S|[│┃]", line)]
