"""The end of workers whose launcher was killed, and of their children.

The kernel ends the workers on Linux; elsewhere they watch a pipe. Neither ends their children: subprocesses of the
script, the processes of a DataLoader. A shell of some hundred kilobytes does, which reads from a pipe that the launcher
alone writes to, and which ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from quorate.core.errors import ConfigurationError

LAUNCHER_FD = "QUORATE_LAUNCHER_FD"
"""Names the inherited end of a pipe of which the launcher alone holds the other end."""

_PR_SET_PDEATHSIG = 1

_SHELL = """trap '' HUP INT TERM
while read -r what group; do
  case $what in
    begun) begun="$begun $group" ;;
    over) over="$over $group " ;;
  esac
done
for group in $begun; do
  case $over in
    *" $group "*) ;;
    *) kill -9 "-$group" 2>/dev/null ;;
  esac
done
"""
_LEAVE = 2.0


def death_with_parent() -> Callable[[], None] | None:
    """Return a function for a child between fork and exec: the kernel then kills it with its parent. None off Linux.

    Between fork and exec nothing may be imported or loaded: all is prepared here.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            # The parent died before this was armed.
            os._exit(1)

    return arm


def watch_launcher() -> None:
    """End this process as soon as its launcher has ended, if that passed down a pipe to watch; does nothing otherwise.

    Asked for once; a daemon thread waits for the end of the pipe. The name is taken out of the environment, so that
    this process's own children, which do not inherit the pipe, look for none. Raises `ConfigurationError` where the
    name stands for something else.
    """
    named = os.environ.pop(LAUNCHER_FD, None)
    if named is None:
        return
    watched = int(named) if named.isdecimal() and len(named) < 10 else -1
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(watched).st_mode)
        os.set_inheritable(watched, False)
    except OSError:
        is_pipe = False
    if not is_pipe:
        raise ConfigurationError(
            f"{LAUNCHER_FD}={named} is not a pipe of a launcher; leave it unset, as `quorate run` sets it"
        )
    threading.Thread(target=_until_it_ends, args=(watched,), name="quorate launcher", daemon=True).start()


def _until_it_ends(watched: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(watched, 1):
            pass
    # Not an ordinary exit: there is nobody left to wait for, to report to, or to write for.
    os._exit(1)


def end_of_input(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a process whose stdin is a pipe leave at its end; it has so many seconds, and is killed then."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Guard:
    """A context: process groups that have begun and are not over when this process is killed are killed then.

    Where no shell can be started nothing is guarded. Leaving the context kills nobody.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        for group in sorted(self._groups):
            self.over(group)
        if self._shell is None:
            return
        end_of_input(self._shell, _LEAVE)

    def begun(self, group: int) -> None:
        """The process group of a worker is there; a second call does nothing."""
        if group not in self._groups:
            self._groups.add(group)
            self._tell("begun", group)

    def over(self, group: int) -> None:
        """Nobody is left in it."""
        if group in self._groups:
            self._groups.discard(group)
            self._tell("over", group)

    def _tell(self, change: str, group: int) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            with suppress(OSError):  # somebody has killed it
                self._shell.stdin.write(f"{change} {group}\n".encode())
