"""Workers that are forked from a process that has imported torch, instead of started: ready in milliseconds.

They are forked first, while the launcher has no threads, and wait for their environment; then come the board and all
else. From the script's first line on such a worker is as one that was started: a session, descriptors, generators,
environment and `__main__` of its own, ended by the kernel when its launcher ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from quorate.launch.local.children import Child, Command
from quorate.launch.local.orphans import death_with_parent
from quorate.launch.local.processes import PASSED_ON
from quorate.launch.local.verdict import log_of
from quorate.launch.warm.script import live_as_main

KEPT = 3
"""The one descriptor above the standard ones that a forked process keeps."""


class ForkedRanks:
    """The launcher's end: what `quorate.launch.local.processes.Ranks` says. `fork` makes it."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, socket.socket]] = {}

    @staticmethod
    def fork(
        command: Command, those: Iterable[int], folder: Path, *, is_new: bool = True
    ) -> ForkedRanks | Callable[[], None]:
        """Returns once in this process, and once in each forked one, of `those` ranks: what that is to do, to its end.

        To be called while this process has one thread, and the signals of `PASSED_ON` are blocked; `start` unblocks
        them. A rank whose launcher never comes to `start` ends by itself. Logs are `is_new`, or appended to.
        """
        ranks = ForkedRanks()
        die_with_launcher = death_with_parent()
        for rank in those:
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                if die_with_launcher is not None:
                    die_with_launcher()
                for _, of_another in [*ranks._waiting.values(), (0, ours)]:
                    of_another.close()
                return _Rank(command, theirs.detach(), log_of(folder, rank), is_new=is_new).live
            theirs.close()
            ranks._waiting[rank] = pid, ours
        return ranks

    def start(self, rank: int, environment: Mapping[str, str]) -> Child:
        """Let the script of `rank` begin."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        pid, connection = self._waiting.pop(rank)
        with connection, suppress(OSError):  # where it has died already, its status will say so
            connection.recv(1)
            connection.sendall(json.dumps(dict(environment)).encode())
        return _Forked(pid)

    def finish(self) -> None:
        """All have ended; there is nothing to close."""


class _Forked:
    """A child of this process, as a `Crew` watches it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


class _Rank:
    """The worker's end."""

    def __init__(self, command: Command, launcher: int, log: Path, *, is_new: bool) -> None:
        self._command, self._launcher, self._log = command, launcher, log
        self._begins = os.O_TRUNC if is_new else os.O_APPEND

    def live(self) -> None:
        """The whole life of this process."""
        os.setsid()
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | self._begins, 0o666)
        stand_alone(self._launcher, log, log)
        environment = self._told()
        os.environ.clear()
        os.environ.update(environment)
        _draw_seeds()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        live_as_main(self._command.script, self._command.arguments, is_module=self._command.is_module)

    def _told(self) -> dict[str, str]:
        """Return the environment, as soon as it arrives."""
        with socket.socket(fileno=KEPT) as launcher, launcher.makefile("rb") as words:
            launcher.sendall(b".")  # signals to this process group have somebody to reach from here on
            text = words.read()
        if not text:
            raise SystemExit(1)
        environment: dict[str, str] = json.loads(text)
        return environment


def _draw_seeds() -> None:
    """Default generators begin anywhere, as in a fresh process (python's own one is drawn anew at every fork)."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def stand_alone(kept: int, out: int, err: int) -> None:
    """Nothing to read on stdin, `out` and `err` as stdout and stderr, `kept` as `KEPT`; all others are closed."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for standard, file in enumerate((nothing, out, err)):
        os.dup2(file, standard)
    if kept != KEPT:
        os.dup2(kept, KEPT, inheritable=False)
    for number in [int(name) for name in os.listdir("/dev/fd")]:
        if number > KEPT:
            with suppress(OSError):  # the one that listed them
                os.close(number)
