"""Python programs as `subprocess` starts them, but forked from the process that has imported torch: 4 s less each.

`run` and `Program` take words as after `python`: `["-m", "quorate.cli.main", "run", ...]` or `["script.py", ...]`. What
the program finds, writes and leaves is as in one that was started (`quorate.launch.warm.script`), and the workers that
`quorate run` or `quorate compare` start in it are forked too. What depends on what is imported, and when, belongs into
a program that is really started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, reduction
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from tests.support.lives import live
from tests.support.processes import forking

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
QUORATE = ("-m", "quorate.cli.main")

_ONE_AT_A_TIME = threading.Lock()
"""Of any thread that starts a process multiprocessing looks which of all have ended, and only the first who looks at
one is told its status."""


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
        is_leader: bool = False,
    ) -> None:
        """`inside` is a process in whose network and on whose host it is to be; `is_leader`: of a session."""
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
        environment = dict(os.environ if env is None else env)
        streams = [_Handed(each) for each in theirs]
        folder = os.path.abspath(cwd)
        self._process = forking.Process(
            target=live, args=(list(words), folder, environment, streams, inside, is_leader)
        )
        with _ONE_AT_A_TIME:
            self._process.start()
        for each in theirs:
            os.close(each)

    @property
    def pid(self) -> int:
        """Its own."""
        found = self._process.pid
        assert found is not None
        return found

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        with _ONE_AT_A_TIME:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises `subprocess.TimeoutExpired`."""
        connection.wait([self._process.sentinel], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """What it wrote, once it has ended. Raises `subprocess.TimeoutExpired`."""
        until = time.monotonic() + (3600.0 if timeout is None else timeout)
        readers = [_Reader(stream) for stream in (self.stdout, self.stderr)]
        for reader in readers:
            reader.join(max(0.0, until - time.monotonic()))
        self.wait(max(0.1, until - time.monotonic()))
        return readers[0].said, readers[1].said

    def send_signal(self, signum: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """As `send_signal`."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str], *, cwd: Path | str, env: Mapping[str, str] | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `capture_output` and `text`."""
    program = Program(words, cwd=cwd, env=env)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()
    return subprocess.CompletedProcess(program.args, program.wait(), out, err)


def quorate(folder: Path | str, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """What the command line does in `folder`."""
    return run([*QUORATE, *arguments], cwd=folder, timeout=timeout)


def _as_popen(words: Sequence[str], **named: Any) -> Program:
    streams = {name: named.get(name) for name in ("stdin", "stdout", "stderr")}
    return Program(
        [word for word in words[1:] if word != "-P"],
        cwd=named.get("cwd") or ".",
        env=named["env"],
        text=False,
        is_leader=named.get("start_new_session", False),
        **streams,
    )


WARM: Any = SimpleNamespace(PIPE=PIPE, DEVNULL=DEVNULL, TimeoutExpired=subprocess.TimeoutExpired, Popen=_as_popen)
"""In place of the module `subprocess` in those that start python: `quorate.launch.warm.run_server`, the doctor."""


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


class _Handed:
    """A descriptor that goes along to the process that is being started."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any]]:
        return (_received, (reduction.DupFd(self._number),))


def _received(given: Any) -> int:
    number: int = given.detach()
    return number


def _opened(given: int | IO[Any] | None, number: int) -> int:
    if given == DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    if given is None:
        return os.dup(number)
    return os.dup(given if isinstance(given, int) else given.fileno())
