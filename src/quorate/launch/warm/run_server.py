"""`RunServer`: many runs, one after the other, whose workers need not import torch each time.

They are forked (`quorate.launch.warm.forks`) where they can be; on other hosts, and where no zygote starts, every
worker is a program of its own. What a run does and leaves is the same.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from threading import Lock, Thread

from quorate.core.errors import ConfigurationError, QuorateError
from quorate.launch.hosts.ranks import HostRanks
from quorate.launch.local.children import Command, Programs, StartedRanks, Starter
from quorate.launch.local.process_group import WRONG_INPUT, Crew
from quorate.launch.local.processes import Conclusion, run_crew
from quorate.launch.local.verdict import log_of, status_in_words
from quorate.launch.run.requests import status_after
from quorate.launch.warm.alone import Streams
from quorate.launch.warm.forks import CAN_FORK, IMPORTED, Forks, environment_of_python, kept
from quorate.launch.warm.request import RunRequest
from quorate.wire.board import MemoryBoard

CONSOLE = "console.log"
"""The file of a virtual run's console output, in its folder."""
VIRTUAL_RUN = "quorate.launch.warm.request"
_LEAVE = 5.0
"""Seconds that killed workers have to be collected."""


class RunServer:
    """A context in which runs are started, one at a time; at its end none is left, whatever ends this process too.

    `imported` are the modules that workers find imported already; the first run waits until they are.
    `why_not_forking` says why workers are started as programs although they could be forked; None where they are not.
    """

    def __init__(self, *, is_forking: bool = CAN_FORK, imported: Sequence[str] = IMPORTED) -> None:
        self.why_not_forking: str | None = None
        self._is_forking = is_forking
        self._imported = imported
        self._programs = Programs()
        self._forks: Forks | None = None
        self._run: Run | None = None

    def __enter__(self) -> RunServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None and self._run.ended is None:
            self._run.send(signal.SIGKILL)
            self._run.wait(_LEAVE)
        if self._forks is not None:
            self._forks.__exit__()
        self._programs.__exit__()

    def start(self, request: RunRequest) -> Run:
        """Begin a run; the one before has ended."""
        assert self._run is None or self._run.ended is not None, "one run at a time"
        self._run = Run(partial(_carry_out, request, self._starter() if request.hosts is None else self._programs))
        return self._run

    def _starter(self) -> Starter:
        if not self._is_forking:
            return self._programs
        forks = kept()
        if forks is not None:
            return forks
        if self._forks is None or self._forks.has_ended:
            if self._forks is not None:
                self._forks.__exit__()
            self._forks = Forks(self._imported)
        if not self._forks.wait():
            self._is_forking = False
            self.why_not_forking = self._forks.last_words
            return self._programs
        return self._forks


class Run:
    """A run under way, in a thread."""

    def __init__(self, carry_out: Callable[[Callable[[Crew], None]], Conclusion]) -> None:
        self.ended: Conclusion | None = None
        """How it ended, once `wait` has seen it."""
        self._carry_out = carry_out
        self._conclusion: Conclusion | BaseException | None = None
        self._crew: Crew | None = None
        self._asked: list[signal.Signals] = []
        self._lock = Lock()
        self._thread = Thread(target=self._live, name="quorate run", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> Conclusion | None:
        """How it ended; None if it has not within `seconds` (None: wait for it)."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return None
        if isinstance(self._conclusion, BaseException):
            raise self._conclusion
        self.ended = self._conclusion
        return self.ended

    def send(self, signum: signal.Signals) -> None:
        """Pass a signal on to the workers; the second is their end."""
        with self._lock:
            self._asked.append(signum)
            if self._crew is not None:
                self._crew.pass_on(signum)

    def _begun(self, crew: Crew) -> None:
        with self._lock:
            self._crew = crew
            for signum in self._asked:
                crew.pass_on(signum)

    def _live(self) -> None:
        try:
            self._conclusion = self._carry_out(self._begun)
        except (QuorateError, OSError) as error:
            self._conclusion = Conclusion(WRONG_INPUT if isinstance(error, ConfigurationError) else 1, str(error))
        except BaseException as error:
            self._conclusion = error


def _carry_out(request: RunRequest, starter: Starter, begun: Callable[[Crew], None]) -> Conclusion:
    if request.virtual is not None:
        ended = _run_virtual(request, starter, begun)
    else:
        ranks: StartedRanks | HostRanks
        if request.hosts is None:
            ranks = StartedRanks(request.command, request.size, request.folder, starter=starter)
        else:
            ranks = HostRanks(request.command, request.hosts, request.folder)
        with ranks:
            ended = run_crew(request.command, request.size, request.folder, ranks, grace=request.grace, begun=begun)
    if ended.status and isinstance(starter, Forks) and starter.has_ended:
        return Conclusion(1, f"the process that starts the workers {starter.last_words}")
    return ended


def _run_virtual(request: RunRequest, starter: Starter, begun: Callable[[Crew], None]) -> Conclusion:
    command = Command(script=VIRTUAL_RUN, is_module=True, arguments=[request.line().decode().rstrip()])
    console = request.folder / CONSOLE
    with (
        FileIO(os.devnull, "wb") as out,
        FileIO(console, "wb") as err,
        Crew([], MemoryBoard(), grace=request.grace) as crew,
    ):
        crew.join(starter.start(command, environment_of_python(), Streams(out.fileno(), err.fileno())))
        begun(crew)
        crew.watch()
    status = crew.endings[0].status
    if status and crew.interrupted_by is not None:
        why = f"ended by {crew.interrupted_by.name}; every worker has ended"
        return Conclusion(status_after(crew.interrupted_by), why)
    if status < 0:
        return Conclusion(1, f"the process of the virtual workers {status_in_words(status)}")
    return Conclusion(status, None if status == 0 else _why(console))


def _why(console: Path) -> str:
    """The sentence in what was shown of the failure of a virtual run."""
    lines = console.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = [line.removeprefix("[rank ").partition("] ") for line in lines if line.startswith("[rank ")]
    if not shown:
        return lines[-1].removeprefix("quorate: ") if lines else "a worker left with a status above 0"
    rank = int(shown[0][0])
    raised = [text for of, _, text in shown if int(of) == rank][-1]
    return f"rank {rank} raised {raised}; its log is {log_of(console.parent, rank)}"
