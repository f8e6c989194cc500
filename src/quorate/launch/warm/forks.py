"""`Forks`: processes that are forked from one that has imported torch (`quorate.launch.warm.zygote`), not started.

Outside Linux, and where that process does not come, each is a program. What it does and leaves is the same.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock

from quorate.launch.local.children import Child, Command, Console, Programs, hash_seed, tell, tell_group, wait
from quorate.launch.local.verdict import status_in_words
from quorate.launch.warm.zygote import LENGTH

CAN_FORK = sys.platform.startswith("linux")
"""Whether a process that has imported torch can be forked: on macOS its system libraries forbid it."""
IMPORTED = (
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",  # by torch's optimizers when they are first used, which takes as long as torch itself
    "quorate.core.settings",
    "quorate.launch.worker.join",
    "quorate.launch.takeover.replacing",
    "quorate.launch.virtual.run",
    "quorate.train.distribute",
    "quorate.data.loading",
)
"""Modules that nearly every training imports, if they are installed."""
ZYGOTE = "quorate.launch.warm.zygote"
_BIRTH = 60.0
"""Seconds at most until a process that was asked for is there."""
_LEAVE = 5.0
"""Seconds that a zygote has to leave, from the request to end, before it is killed."""


def environment_of_python() -> dict[str, str]:
    """Threads are to be chosen before torch is imported, buffers of streams and hashes before python begins."""
    ours = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": hash_seed()}
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **ours}


class Forks:
    """A context, and a `Starter`; at its end none of its processes is left.

    A process that is started before the zygote is ready begins when it is polled afterwards; until then it has no pid.
    It is a program if the zygote has ended. `imported` are the modules that processes find imported already.
    """

    def __init__(self, imported: Sequence[str] = IMPORTED) -> None:
        self._imported = imported
        self._programs = Programs()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._nothing = os.open(os.devnull, os.O_RDWR)
        self._received = b""
        self._is_ready = False
        self._ended: dict[int, int] = {}
        self._lock = Lock()
        """Guards the socket: several threads may start and poll processes."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._zygote = self._begun(theirs) if CAN_FORK else None

    def _begun(self, client: socket.socket) -> Child:
        """Start the zygote, and return it."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", ZYGOTE, *self._imported],
            stdin=client.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            **self._programs.leash.options(environment_of_python()),
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for closed in (self._socket, self._said):
            closed.close()
        os.close(self._nothing)
        self._programs.__exit__()

    def end(self, seconds: float = 0.0) -> None:
        """Let the zygote leave by itself for so long, then kill it; all it has forked ends with it."""
        if self._zygote is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if wait(self._zygote, seconds) is None:
                tell(self._zygote, signal.SIGKILL)
                wait(self._zygote)

    @property
    def has_ended(self) -> bool:
        """Whether there is no zygote."""
        return self._zygote is None or self._zygote.poll() is not None

    @property
    def is_ready(self) -> bool:
        """Whether a process that is started now is forked at once."""
        return self.wait(0.0)

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the zygote is ready, once it is, or has ended, or after so many seconds."""
        with suppress(TimeoutError), self._lock:
            self._is_ready = self._is_ready or self._message(seconds) is not None
        return self._is_ready and not self.has_ended

    @property
    def last_words(self) -> str:
        """How the zygote ended, and the last line it left."""
        self.end(_LEAVE)
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").split("\n") if line.strip()]
        status = None if self._zygote is None else self._zygote.poll()
        return status_in_words(status or 0) + (f", saying: {lines[-1]}" if lines else "")

    def start(self, command: Command, environment: Mapping[str, str], console: Console) -> Child:
        """Fork a process of `command` in the present folder, as soon as the zygote is ready."""
        begin = partial(self.begin, command, environment, console)
        return begin() or _Expected(begin)

    def begin(self, command: Command, environment: Mapping[str, str], console: Console) -> Child | None:
        """Start a process, a program if there is no zygote; None while it is awaited."""
        pid = self._fork(command, environment, console) if self.is_ready else None
        if pid is not None:
            return _Forked(pid, self)
        return self._programs.start(command, environment, console) if self.has_ended else None

    def _fork(self, command: Command, environment: Mapping[str, str], console: Console) -> int | None:
        command_words = {"script": command.script, "arguments": list(command.arguments), "is_module": command.is_module}
        text = json.dumps({**command_words, "environment": dict(environment), "folder": os.getcwd()}).encode()
        stdin = {None: 0, subprocess.DEVNULL: self._nothing}.get(console.stdin, console.stdin)
        refused = 0
        with self._lock, suppress(OSError):  # it has ended, or does not answer
            socket.send_fds(self._socket, [LENGTH.pack(len(text))], [stdin or 0, *console.streams()])
            self._socket.sendall(text)
            while not refused and (message := self._message(_BIRTH)) is not None:
                if "born" in message:
                    console.started()
                    self._ended.pop(message["born"], None)
                    return message["born"]
                if "ended" in message:
                    self._ended[message["ended"]] = message["status"]
                refused = message.get("refused", 0)
        if refused:
            console.started()
            raise OSError(refused, f"no process can be forked: {os.strerror(refused)}")
        self.end()
        return None

    def status(self, pid: int) -> int | None:
        """How a forked process has ended, if it has; with SIGKILL if the zygote has, and no one can tell."""
        with self._lock, suppress(TimeoutError):
            while pid not in self._ended:
                message = self._message(0.0)
                if message is None:
                    return -signal.SIGKILL
                self._ended[message["ended"]] = message["status"]
            return self._ended.pop(pid)
        return None

    def _message(self, seconds: float | None) -> dict[str, int] | None:
        """Return the next one; None if the zygote has ended. Raises `TimeoutError` after `seconds`."""
        events = select.poll()
        events.register(self._socket, select.POLLIN)
        until = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._received:
            if self._zygote is None:
                return None
            if not events.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError
            piece = b""
            with suppress(ConnectionError):
                piece = self._socket.recv(2**16)
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, int] = json.loads(line)
        return message


class _Forked:
    """A process of a zygote."""

    def __init__(self, pid: int, forks: Forks) -> None:
        self.pid, self._forks = pid, forks
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._forks.status(self.pid)
        return self._status


class _Expected:
    """A process that begins when the zygote is ready. A signal before it has begun is its end."""

    host, why = None, None

    def __init__(self, begin: Callable[[], Child | None]) -> None:
        self._begin = begin
        self._child: Child | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def poll(self) -> int | None:
        if self._status is None and self._child is None:
            self._child = self._begin()
        return self._status if self._child is None else self._child.poll()

    def send(self, signum: signal.Signals | int, *, to_group: bool) -> None:
        """To the process, or to all it has started as well."""
        if self._child is None:
            self._status = -int(signum)
        else:
            (tell_group if to_group else tell)(self._child, signum)


_kept: list[Forks] = []


def kept() -> Forks | None:
    """Return what this process starts all its workers with, if it has been told."""
    return _kept[-1] if _kept else None


@contextmanager
def keeping(forks: Forks) -> Iterator[None]:
    """Inside, runs of this process start all their workers with `forks`, which lives on after each."""
    _kept.append(forks)
    try:
        yield
    finally:
        _kept.remove(forks)
