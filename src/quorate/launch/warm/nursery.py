"""`Nursery`: workers are forked from a process that has imported torch, all but the first; those that join as well.

The process is `quorate.launch.warm.nursery_server`; it imports while the first worker does, so that torch is imported
twice for a run, and not once for each worker. Its end is the end of those that it has forked.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from quorate.launch.local.children import Child, Command, Leash
from quorate.launch.warm.run_server import CAN_FORK, IMPORTED, Program

SERVER = "quorate.launch.warm.nursery_server"
_BIRTH = 10.0
"""Seconds at most until a worker that was asked for is there."""


class Nursery:
    """A context; outside Linux, and until it is ready, it starts no worker."""

    def __init__(self, command: Command, folder: Path, imported: Sequence[str] = IMPORTED) -> None:
        self._command, self._folder = command, folder
        self._leash = Leash()
        self._program = Program(SERVER, self._leash, imported) if CAN_FORK else None
        self._ended: dict[int, int] = {}

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._program is not None:
            self._program.end(0.0)
            self._program = None
        self._leash.close()

    @property
    def is_coming(self) -> bool:
        """Whether it imports, or is ready."""
        return self._program is not None and not self._program.has_ended

    def start(self, rank: int, environment: Mapping[str, str]) -> Child | None:
        """Let `rank` begin; its output is appended to its log. None where it is to be started as a program."""
        program = self._program
        if program is None or not self._is_ready(program):
            return None
        command = {name: value for name, value in asdict(self._command).items() if name != "overrides"}
        asked = {"rank": rank, "folder": str(self._folder), "command": command, "environment": dict(environment)}
        program.write(json.dumps(asked).encode() + b"\n")
        try:
            while (line := program.line(_BIRTH)) is not None:
                message = json.loads(line)
                if "born" in message:
                    return _Born(message["born"], self)
                self._ended[message["ended"]] = message["status"]
        except TimeoutError:
            program.end(0.0)
        self._program = None
        return None

    def _is_ready(self, program: Program) -> bool:
        if not program.is_ready:
            try:
                program.is_ready = program.line(0.0) is not None
            except TimeoutError:
                return False
        return program.is_ready

    def status(self, pid: int) -> int | None:
        """How a worker of it has ended; with SIGKILL if the nursery has, and no one can tell."""
        try:
            while pid not in self._ended:
                line = None if self._program is None else self._program.line(0.0)
                if line is None:
                    return -signal.SIGKILL
                message = json.loads(line)
                self._ended[message["ended"]] = message["status"]
        except TimeoutError:
            return None
        return self._ended[pid]


class _Born:
    """A worker, as a `Crew` watches it."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid, self._nursery = pid, nursery

    def poll(self) -> int | None:
        return self._nursery.status(self.pid)
