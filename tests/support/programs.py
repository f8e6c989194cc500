"""Python programs as `subprocess` starts them, but forked from the zygote of the tests: 4 s less each.

`run` and `Program` take words as after `python`: `["-m", "quorate.cli.main", "run", ...]` or `["script.py", ...]`. What
the program finds, writes and leaves is as in one that was started (`quorate.launch.warm.script`), and all the workers
that it starts are forked from it: it keeps a zygote (`quorate.launch.warm.forks.keeping`). What depends on what is
imported, and when, belongs into a program that is really started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from quorate.launch.local.children import Command
from tests.support.launching import LIMIT, until
from tests.support.processes import Streams
from tests.support.zygote import forks

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
QUORATE = ("-m", "quorate.cli.main")
_LOOK_EVERY = 0.01


class Program:
    """What `subprocess.Popen` is, as far as tests use it; text comes as UTF-8."""

    stdin: IO[Any] | None
    stdout: IO[Any] | None
    stderr: IO[Any] | None

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path | str = ".",
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = DEVNULL,
        stdout: int | IO[Any] | None = PIPE,
        stderr: int | IO[Any] | None = PIPE,
        text: bool = True,
        inside: int | None = None,
        has_terminal: bool = False,
    ) -> None:
        """`inside` is a process in whose network and on whose host it is to be; `has_terminal`: `stdin` controls it."""
        self.args = [sys.executable, *words]
        self.returncode: int | None = None
        theirs: list[int] = []
        for name, given in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            ours = None
            if given == PIPE:
                read, write = os.pipe()
                theirs.append(read if name == "stdin" else write)
                number, mode = (write, "w") if name == "stdin" else (read, "r")
                ours = os.fdopen(number, mode, encoding="utf-8") if text else os.fdopen(number, f"{mode}b", buffering=0)
            else:
                theirs.append(_opened(given, len(theirs)))
            setattr(self, name, ours)
        life = {"words": [*words], "folder": os.path.abspath(cwd), "inside": inside, "has_terminal": has_terminal}
        command = Command(script="tests.support.program", is_module=True, arguments=[json.dumps(life)])
        self._child = forks().start(command, os.environ if env is None else env, Streams(*theirs))
        for each in theirs:
            os.close(each)

    @property
    def pid(self) -> int:
        """Its own."""
        pid = self._child.pid
        assert pid is not None
        return pid

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        self.returncode = self._child.poll()
        return self.returncode

    def until(self, is_so: Callable[[], bool]) -> None:
        """Return as soon as `is_so()`, or when it has ended."""
        until(lambda: is_so() or self.poll() is not None)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises `subprocess.TimeoutExpired`."""
        until = time.monotonic() + (3600.0 if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_LOOK_EVERY)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """What it wrote, once it has ended. Raises `subprocess.TimeoutExpired`."""
        until = time.monotonic() + (3600.0 if timeout is None else timeout)
        readers = [_Reader(stream) for stream in (self.stdout, self.stderr)]
        for reader in readers:
            reader.join(max(0.0, until - time.monotonic()))
        self.wait(max(0.1, until - time.monotonic()))
        return readers[0].said, readers[1].said

    def ended(self) -> tuple[int, str, str]:
        """Its exit status, and what it wrote; it is killed where it does not end."""
        try:
            out, err = self.communicate()
        finally:
            self.kill()
        return self.wait(), out, err

    def send_signal(self, signum: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """As `send_signal`."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str], *, cwd: Path | str, env: Mapping[str, str] | None = None, timeout: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `capture_output` and `text`."""
    program = Program(words, cwd=cwd, env=env)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()
    return subprocess.CompletedProcess(program.args, program.wait(), out, err)


def quorate(folder: Path | str, *arguments: str, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """What the command line does in `folder`."""
    return run([*QUORATE, *arguments], cwd=folder, timeout=timeout)


class _Reader(threading.Thread):
    def __init__(self, stream: IO[Any] | None) -> None:
        super().__init__(daemon=True)
        self.said: Any = ""
        self._stream = stream
        self.start()

    def run(self) -> None:
        if self._stream is not None and not self._stream.closed:
            with self._stream:
                self.said = self._stream.read()


def _opened(given: int | IO[Any] | None, number: int) -> int:
    if given == DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    if given is None:
        return os.dup(number)
    return os.dup(given if isinstance(given, int) else given.fileno())
