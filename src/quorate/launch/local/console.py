"""The output of workers: kept in a log file for each rank; rank 0's is shown as well, byte for byte."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

_CHUNK = 2**16


class QuietConsole:
    """A worker's output goes to its log alone."""

    stdin: int | None = subprocess.DEVNULL

    def __init__(self, log: Path) -> None:
        self._log = log
        self._opened: FileIO | None = None

    def streams(self) -> tuple[int, int]:
        """Descriptors for the stdout and the stderr of the process to start."""
        self._opened = self._opened or FileIO(self._log, "ab")
        return self._opened.fileno(), self._opened.fileno()

    def started(self) -> None:
        """The process has them now."""
        if self._opened is not None:
            self._opened.close()

    def finish(self) -> None:
        """The process has ended."""


class ShownConsole:
    """A worker's output goes to its log and, as it comes, to our own stdout and stderr.

    If the launcher's stream is a terminal, the worker's is one too (of the same size), so that progress bars and
    colours work. Otherwise it is a pipe, and stdout and stderr stay separate. If its reader ends (as in `| head`), only
    the output stops.
    """

    stdin: int | None = None

    def __init__(self, log: Path, out: BinaryIO, err: BinaryIO) -> None:
        self._log = open(log, "ab", buffering=0)  # noqa: SIM115 - closed by `finish`
        self._theirs: list[int] = []
        self._terminals: list[tuple[int, int]] = []
        self._pumps: list[threading.Thread] = []
        self._is_hidden = False
        self._out = self._connect(out)
        self._err = self._out if self._terminals and _is_terminal(err) else self._connect(err)

    def streams(self) -> tuple[int, int]:
        """Descriptors for the stdout and the stderr of the process to start."""
        return self._out, self._err

    def started(self) -> None:
        """Close our ends, which the process has now, and pass on its output."""
        for theirs in self._theirs:
            os.close(theirs)
        for pump in self._pumps:
            pump.start()

    def finish(self, seconds: float = 1.0) -> None:
        """Pass on the remaining output of an ended process, for at most `seconds`."""
        for pump in self._pumps:
            pump.join(seconds)
        if not any(pump.is_alive() for pump in self._pumps):
            self._log.close()

    def hide(self) -> None:
        """Write its output only to the log from here on."""
        self._is_hidden = True

    @contextlib.contextmanager
    def following_size(self) -> Iterator[None]:
        """Keep the worker's terminal at the size of ours inside (in the main thread, which gets signals)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGWINCH, lambda signum, frame: self._resize())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)

    def _resize(self) -> None:
        for shown, ours in self._terminals:
            _copy_size(shown, ours)

    def _connect(self, shown: BinaryIO) -> int:
        if _is_terminal(shown):
            ours, theirs = pty.openpty()
            _leave_bytes_alone(theirs)
            _copy_size(shown.fileno(), ours)
            self._terminals.append((shown.fileno(), ours))
        else:
            ours, theirs = os.pipe()
        self._theirs.append(theirs)
        self._pumps.append(threading.Thread(target=self._pump, args=(ours, shown), name="quorate console", daemon=True))
        return theirs

    def _pump(self, ours: int, shown: BinaryIO) -> None:
        is_shown = True
        with FileIO(ours) as source:
            while piece := _next(source):
                with contextlib.suppress(OSError):  # a full disk ends the log, not the run
                    self._log.write(piece)
                if is_shown and not self._is_hidden:
                    try:
                        shown.write(piece)
                        shown.flush()
                    except (OSError, ValueError):
                        is_shown = False
                        _swallow(shown)


def _next(source: FileIO) -> bytes:
    """The next bytes of a pipe or terminal; none at the end (which a terminal tells by an error)."""
    try:
        return source.read(_CHUNK)
    except OSError:
        return b""


def _swallow(stream: BinaryIO) -> None:
    """Discard the buffer of `stream`: else the interpreter fails on it when it ends, with status 120."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _is_terminal(stream: BinaryIO) -> bool:
    try:
        return os.isatty(stream.fileno())
    except (OSError, ValueError):  # replaced by something without a descriptor, or closed
        return False


def _leave_bytes_alone(terminal: int) -> None:
    """Turn off the conversion of `\\n` to `\\r\\n`, which our own terminal makes."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
