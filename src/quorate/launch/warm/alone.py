"""A program that runs alone, outside any run, within a limit: it is killed with all that it has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError, QuorateError
from quorate.launch.local.children import Command, Programs, Starter, tell_group, wait
from quorate.launch.local.verdict import status_in_words
from quorate.launch.warm.forks import kept

MEASURING = "quorate.launch.warm.measuring"
SECONDS = 1800.0
"""Time limit of a script up to its first step, in seconds."""
_OF_LAUNCHERS = (
    *("QUORATE_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_"),
    *("SLURM_", "OMPI_COMM_WORLD_", "PMI"),
)
"""Beginnings of the variables by which launchers tell a worker its place; a program that is alone has none."""
_OF_USERS = tuple(f"QUORATE_{name}" for name in ("SSH", "TOKEN", "TLS", "SILENCE", "CONGESTION", "GPU_BACKEND"))


class Streams:
    """The streams of a process without input; they stay open."""

    stdin: int | None = subprocess.DEVNULL

    def __init__(self, out: int, err: int) -> None:
        self._both = out, err

    def streams(self) -> tuple[int, int]:
        return self._both

    def started(self) -> None:
        """Leave them open."""


def run_alone(
    command: Command, streams: Streams, seconds: float, starter: Starter | None = None, **environment: str
) -> int | None:
    """Run `command` in the present folder; return its exit status, or None if it had to be killed after `seconds`."""
    inherited = {
        name: value for name, value in os.environ.items() if name in _OF_USERS or not name.startswith(_OF_LAUNCHERS)
    }
    with Programs() as programs:
        child = (starter or programs).start(command, {**inherited, **environment}, streams)
        try:
            return wait(child, seconds)
        finally:
            if child.poll() is None:
                tell_group(child, signal.SIGKILL)
                wait(child)


def measured(
    script: str,
    arguments: Sequence[str],
    seconds: float = SECONDS,
    program: str = MEASURING,
    steps: int = 1,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `script` in one process of the module `program` for `steps` steps; return its answer. It prints on stderr.

    `environment` is added to this process's environment. Raises `ConfigurationError` for a script that makes fewer
    steps, and `QuorateError` for one that fails before, or takes longer than `seconds`.
    """
    lacking = "without an optimizer.step()" if steps == 1 else f"before its optimizer.step() number {steps}"
    last = "its first optimizer.step()" if steps == 1 else f"its {steps} steps that are looked at"
    with tempfile.TemporaryDirectory(prefix="quorate-alone-") as folder:
        path = Path(folder, "answer.json")
        command = Command(script=program, is_module=True, arguments=[str(path), script, *arguments])
        status = run_alone(command, Streams(sys.stderr.fileno(), 2), seconds, kept(), **(environment or {}))
        if status is None:
            made = "no step" if steps == 1 else f"fewer than {steps} steps"
            raise QuorateError(f"{script} has made {made} within {seconds:g} s")
        if path.exists():
            answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return answer
    if status == 0:
        raise ConfigurationError(f"{script} has ended {lacking}, so there is nothing to measure")
    raise QuorateError(f"{script} {status_in_words(status)} before the end of {last}")
