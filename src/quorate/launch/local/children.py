"""The processes of a run: how they are started, and watched and signalled, here or on another machine."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from quorate.launch.local.console import QuietConsole, ShownConsole
from quorate.launch.local.orphans import LAUNCHER_FD, death_with_parent
from quorate.launch.local.verdict import log_of
from quorate.launch.run.overrides import Overrides, asked_strategy

_LOOK_EVERY = 0.01


class Child(Protocol):
    """A process that was started; the leader of a process group of its own."""

    @property
    def pid(self) -> int | None:
        """The process, if it is on this machine."""

    def poll(self) -> int | None:
        """Its exit status (minus the signal's number if one ended it); None while it lives. Never waits."""


def wait(child: Child, seconds: float = math.inf) -> int | None:
    """Its exit status; None if it has not ended within `seconds`."""
    until = time.monotonic() + seconds
    while (status := child.poll()) is None and time.monotonic() < until:
        time.sleep(_LOOK_EVERY)
    return status


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
        """The command line.

        A script without a strategy is a plain program, unless it may start processes that make a group. Neither is one
        that may end with a status that python shows to nobody but the launcher.
        """
        is_watched = asked_strategy(self.overrides) or (not self.is_module and _is_to_be_watched(self.script))
        watched = ["-m", "quorate.run"] if is_watched else []
        return [sys.executable, *watched, *(["-m"] if self.is_module else []), self.script, *self.arguments]


_WATCHED = re.compile(rb"multiprocessing|SystemExit|(?<![.\w])(exit|quit)\(")
"""Processes of the script's own; ends other than by `sys.exit`, which a worker that has joined notices by itself."""


def _is_to_be_watched(script: str) -> bool:
    """Return whether the source of `script` names something in `_WATCHED`; False where it cannot be read here."""
    try:
        return _WATCHED.search(Path(script).read_bytes()) is not None
    except OSError:
        return False


def hash_seed() -> str:
    """PYTHONHASHSEED of all workers of a run: what is set here, else 0, so that sets of texts have one order on all.

    A process takes it when it is started: whoever forks workers is started with it.
    """
    chosen = os.environ.get("PYTHONHASHSEED", "")
    return chosen if chosen.isdecimal() else "0"


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


class Console(Protocol):
    """The streams of a process to start."""

    stdin: int | None
    """A descriptor, or `subprocess.DEVNULL`; None: as this process has it."""

    def streams(self) -> tuple[int, int]:
        """Return the descriptors of its stdout and stderr, which stay open until `started` is called."""

    def started(self) -> None:
        """The process has them now."""


class Starter(Protocol):
    """A way to start processes on this machine; each leads a session of its own, and ends with this process."""

    @property
    def is_ready(self) -> bool:
        """Whether a process that is started now begins at once."""

    def start(self, command: Command, environment: Mapping[str, str], console: Console) -> Child:
        """Start a process of `command` in the present folder."""


class Programs:
    """A context, and a `Starter`: every process is a new program."""

    is_ready = True

    def __init__(self) -> None:
        self.leash = Leash()

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        self.leash.close()

    def start(self, command: Command, environment: Mapping[str, str], console: Console) -> Child:
        out, err = console.streams()
        options = self.leash.options(environment)
        child = subprocess.Popen(command.words, stdin=console.stdin, stdout=out, stderr=err, **options)
        console.started()
        return child


class StartedRanks:
    """Workers of this machine, `folder` keeping what they print; rank 0's is `shown` as well.

    They are started by `starter`, by default as programs. Rank 0 is a program where `starter` is not ready yet.
    """

    def __init__(
        self,
        command: Command,
        size: int,
        folder: Path,
        shown: ShownConsole | None = None,
        starter: Starter | None = None,
    ) -> None:
        self._command, self._folder = command, folder
        self._programs = Programs()
        self._starter = starter or self._programs
        self._first = QuietConsole(log_of(folder, 0)) if shown is None else shown
        for rank in range(1, size):
            log_of(folder, rank).open("ab").close()

    def __enter__(self) -> StartedRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.__exit__()

    def start(self, rank: int, environment: Mapping[str, str]) -> Child:
        starter = self._starter if rank or self._starter.is_ready else self._programs
        console = QuietConsole(log_of(self._folder, rank)) if rank else self._first
        return starter.start(self._command, environment, console)

    def finish(self) -> None:
        self._first.finish()
