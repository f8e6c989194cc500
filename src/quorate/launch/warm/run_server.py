"""`RunServer`: many runs, one after the other, whose workers need not import torch each time.

On Linux they are forked from one process that has imported it (`quorate.launch.warm.fork_server`); elsewhere, on other
hosts, and where that process does not start, every worker is a program of its own. What a run does and leaves is the
same.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from quorate.launch.local.children import Leash, hash_seed
from quorate.launch.local.orphans import end_of_input
from quorate.launch.local.processes import Conclusion
from quorate.launch.local.verdict import status_in_words
from quorate.launch.warm.request import RunRequest, conclusion_from

CAN_FORK = sys.platform.startswith("linux")
"""Whether a process that has imported torch can be forked: on macOS its system libraries forbid it."""
IMPORTED = (
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",  # by torch's optimizers when they are first used, which takes as long as torch itself
    "torch.utils.tensorboard",  # where it is installed
    "quorate.core.settings",
    "quorate.launch.worker.join",
    "quorate.launch.virtual.run",
    "quorate.train.distribute",
    "quorate.data.sharding",
)
"""Modules that nearly every training imports, if they are installed."""
SERVER, LAUNCHER = "quorate.launch.warm.fork_server", "quorate.launch.warm.launcher"
_LEAVE = 5.0
"""Seconds that the server has to leave before it is killed."""


class RunServer:
    """A context in which runs are started, one at a time; at its end none is left, whatever ends this process too.

    `imported` are the modules that workers find imported already; the first run waits until they are.
    `why_not_forking` says why workers are started as programs although they could be forked; None where they are not.
    """

    def __init__(self, *, is_forking: bool = CAN_FORK, imported: Sequence[str] = IMPORTED) -> None:
        self.why_not_forking: str | None = None
        self._is_forking = is_forking
        self._imported = imported
        self._leash = Leash()
        self._server: Program | None = None
        self._run: Run | None = None

    def __enter__(self) -> RunServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._run is not None and self._run.ended is None:
            self._run.program.end(0.0)
        if self._server is not None:
            self._server.end(0.0)  # it has nothing to put in order
        self._leash.close()

    def start(self, request: RunRequest) -> Run:
        """Begin a run; the one before has ended."""
        assert self._run is None or self._run.ended is not None, "one run at a time"
        server = self._ready_server() if self._is_forking and request.hosts is None else None
        program = server or Program(LAUNCHER, self._leash)
        program.write(request.line())
        self._run = Run(program, is_shared=server is not None)
        return self._run

    def _ready_server(self) -> Program | None:
        if self._server is None or self._server.has_ended:
            self._server = Program(SERVER, self._leash, self._imported)
        if not self._server.is_ready:
            if self._server.line(None) is None:
                self._is_forking = False
                self.why_not_forking = self._server.last_words
                return None
            self._server.is_ready = True
        return self._server


class Run:
    """A run under way."""

    def __init__(self, program: Program, *, is_shared: bool) -> None:
        self.program = program
        self.ended: Conclusion | None = None
        """How it ended, once `wait` has seen it."""
        self._is_shared = is_shared

    def wait(self, seconds: float | None = None) -> Conclusion | None:
        """How it ended; None if it has not within `seconds` (None: wait for it)."""
        if self.ended is None:
            try:
                line = self.program.line(seconds)
            except TimeoutError:
                return None
            self.ended = self._conclusion(line)
        return self.ended

    def send(self, signum: signal.Signals) -> None:
        """Pass a signal to the launcher of the run, which passes on to its workers what asks it to end."""
        if self.ended is not None:
            return
        if self._is_shared:
            self.program.write(json.dumps({"signal": int(signum)}).encode() + b"\n")
        else:
            self.program.send(signum)

    def _conclusion(self, line: bytes | None) -> Conclusion:
        if not self._is_shared or line is None:
            self.program.end(_LEAVE)
        if line is None:
            return Conclusion(1, f"the process that starts the workers {self.program.last_words}")
        return conclusion_from(line)


class Program:
    """A python module as a process that is talked to in lines; it has a session of its own and dies with this one."""

    def __init__(self, module: str, leash: Leash, arguments: Sequence[str] = ()) -> None:
        self.is_ready = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._written = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            **leash.options(_environment()),
        )

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """How it ended, and the last line it left."""
        self.end(_LEAVE)
        return self._words

    def write(self, line: bytes) -> None:
        """Nothing happens if it is gone: reading says so."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def line(self, seconds: float | None) -> bytes | None:
        """The next line; None if it has ended. Raises `TimeoutError` after `seconds`."""
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        events = select.poll()
        events.register(number, select.POLLIN)
        until = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._written:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not events.poll(None if left is None else left * 1000):
                raise TimeoutError
            piece = os.read(number, 2**16)
            if not piece:
                return None
            self._written += piece
        line, _, self._written = self._written.partition(b"\n")
        return line

    def send(self, signum: signal.Signals) -> None:
        """Nothing happens if it is gone."""
        self._process.send_signal(signum)

    def end(self, seconds: float) -> None:
        """Let it leave by itself for so long, then kill it."""
        if self._said.closed:
            return
        assert self._process.stdout is not None
        end_of_input(self._process, seconds)
        self._process.stdout.close()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        self._said.close()
        last = next((line for line in reversed(lines) if line.strip()), "")
        self._words = status_in_words(self._process.returncode) + (f", saying: {last}" if last else "")


def _environment() -> Mapping[str, str]:
    """Threads are to be chosen before torch is imported, buffers of streams and hashes before python begins."""
    ours = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": hash_seed(),
    }
    return {**os.environ, **ours}
