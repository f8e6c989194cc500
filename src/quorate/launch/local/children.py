"""The processes of a run: how they are started, and watched and signalled, here or on another machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from quorate.launch.local.console import QuietConsole, ShownConsole
from quorate.launch.local.orphans import LAUNCHER_FD, death_with_parent
from quorate.launch.local.verdict import log_of
from quorate.launch.run.overrides import Overrides


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


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command of each worker: a script, or with `is_module` a module as after `python -m`, and its arguments."""

    script: str
    arguments: Sequence[str] = ()
    is_module: bool = False
    overrides: Overrides = field(default_factory=Overrides)

    @property
    def words(self) -> list[str]:
        """The command line."""
        return [sys.executable, *(["-m"] if self.is_module else []), self.script, *self.arguments]


def hash_seed() -> str:
    """PYTHONHASHSEED of all workers of a run: what is set here, else 0, so that sets of texts have one order on all.

    A process takes it when it is started: whoever forks workers is started with it.
    """
    chosen = os.environ.get("PYTHONHASHSEED", "")
    return chosen if chosen.isdecimal() else "0"


class Births(Protocol):
    """A faster way to start workers than as programs."""

    @property
    def is_coming(self) -> bool:
        """Whether it is ready, or may be."""

    def start(self, rank: int, environment: Mapping[str, str]) -> Child | None:
        """Let `rank` begin, its output appended to its log; None where it is not ready, or cannot."""


class Leash:
    """How a worker learns that the launcher has ended: from the kernel on Linux, elsewhere by a pipe it inherits."""

    def __init__(self) -> None:
        self.before_exec = death_with_parent()
        self.inherited: int | None = None
        self._held: int | None = None
        if self.before_exec is None:
            self.inherited, self._held = os.pipe()

    def options(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of `subprocess.Popen` for a process with this environment in a session of its own."""
        tie = {} if self.inherited is None else {LAUNCHER_FD: str(self.inherited)}
        return {
            "env": {**environment, **tie},
            "pass_fds": () if self.inherited is None else (self.inherited,),
            "preexec_fn": self.before_exec,
            "start_new_session": True,
        }

    def close(self) -> None:
        """Let go of the pipe."""
        for end in (self.inherited, self._held):
            if end is not None:
                os.close(end)


class Expected:
    """A worker that is forked when the process that forks it is ready; until then it has no pid.

    Where that process does not come, it is started as a program. A signal before it has begun is its end.
    """

    host, why = None, None

    def __init__(self, rank: int, environment: Mapping[str, str], births: Births, program: Callable[[], Child]) -> None:
        self._rank, self._environment, self._births, self._program = rank, environment, births, program
        self._child: Child | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def poll(self) -> int | None:
        if self._status is not None:
            return self._status
        if self._child is None:
            child = self._births.start(self._rank, self._environment)
            if child is None and self._births.is_coming:
                return None
            self._child = self._program() if child is None else child
        return self._child.poll()

    def send(self, signum: signal.Signals | int, *, to_group: bool) -> None:
        """To the process, or to all it has started as well."""
        if self._child is None:
            self._status = -int(signum)
        elif to_group:
            tell_group(self._child, signum)
        else:
            tell(self._child, signum)


class StartedRanks:
    """Workers of this machine, `folder` keeping what they print; rank 0's is `shown` as well.

    With `births` all but rank 0 are forked, which has the terminal; without, each is a program.
    """

    def __init__(self, command: Command, size: int, folder: Path, shown: ShownConsole | None = None) -> None:
        self._command, self._folder = command, folder
        self._leash = Leash()
        self.births: Births | None = None
        self._first = QuietConsole(log_of(folder, 0)) if shown is None else shown
        for rank in range(1, size):
            log_of(folder, rank).open("ab").close()

    def __enter__(self) -> StartedRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self._leash.close()

    def start(self, rank: int, environment: Mapping[str, str]) -> Child:
        program = partial(self._program, rank, environment)
        return program() if rank == 0 or self.births is None else Expected(rank, environment, self.births, program)

    def _program(self, rank: int, environment: Mapping[str, str]) -> Child:
        console = QuietConsole(log_of(self._folder, rank)) if rank else self._first
        out, err = console.streams()
        child = subprocess.Popen(
            self._command.words,
            stdin=None if isinstance(console, ShownConsole) else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            **self._leash.options(environment),
        )
        console.started()
        return child

    def finish(self) -> None:
        self._first.finish()
