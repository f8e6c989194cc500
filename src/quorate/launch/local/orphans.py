"""A worker whose launcher was killed ends too: by the kernel on Linux, by watching a pipe elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable

from quorate.core.errors import ConfigurationError

LAUNCHER_FD = "QUORATE_LAUNCHER_FD"
"""Names the inherited end of a pipe of which the launcher alone holds the other end."""

_PR_SET_PDEATHSIG = 1


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
