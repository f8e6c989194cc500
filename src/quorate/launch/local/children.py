"""The processes that a crew watches: on this machine, or on another one, where somebody passes signals on."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Protocol, runtime_checkable


class Child(Protocol):
    """A process that was started; the leader of a process group of its own."""

    @property
    def pid(self) -> int | None:
        """The process, if it is on this machine."""

    def poll(self) -> int | None:
        """Its exit status (minus the signal's number if one ended it); None while it lives. Never waits."""


@runtime_checkable
class Distant(Protocol):
    """A child on another machine."""

    @property
    def host(self) -> str:
        """The name of the machine."""

    @property
    def why(self) -> str | None:
        """How it has ended, where that is no exit status: goes on where "rank 2 (host h)" ends."""

    def send(self, signum: signal.Signals | int, *, to_group: bool) -> None:
        """Pass the signal on: to the process, or to all it has started as well."""


def host_of(child: Child) -> str | None:
    """The machine it is on; None for this one."""
    return child.host if isinstance(child, Distant) else None


def tell(child: Child, signum: signal.Signals | int) -> None:
    """Send it to the process itself, if it is there."""
    if isinstance(child, Distant):
        child.send(signum, to_group=False)
    elif child.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signum)


def tell_group(child: Child, signum: signal.Signals | int) -> None:
    """Send a signal to the process and to its children."""
    if isinstance(child, Distant):
        child.send(signum, to_group=True)
    elif child.pid is not None and not signal_group(child.pid, signum):
        tell(child, signum)  # it has not made its process group yet, or has just ended and is not collected


def signal_group(group: int, signum: int) -> bool:
    """Whether there was a process in `group` to take the signal (0: only ask)."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # the latter where all that is left has ended (macOS)
        return False
    return True
