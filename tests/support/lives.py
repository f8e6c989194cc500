"""What a process that was forked does to be the program of `tests.support.programs`, and its workers theirs."""

from __future__ import annotations

import atexit
import fcntl
import importlib
import multiprocessing
import multiprocessing.process
import os
import random
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from quorate.cli import run
from quorate.launch.local import children
from quorate.launch.local import processes as local
from quorate.launch.local.children import Child
from quorate.launch.local.console import QuietConsole, ShownConsole
from quorate.launch.local.orphans import death_with_parent
from quorate.launch.warm import nursery, run_server
from quorate.launch.warm.ranks import _draw_seeds, _Forked
from quorate.launch.warm.script import live_as_main
from tests.support.hosts import enter

SPARE = 2
"""Workers that are forked beyond those of the start, for who joins later; further ones are started."""
_SERVERS = (run_server.SERVER, nursery.SERVER)
_ERRORS = "strict" if sys.__stdout__ is None else sys.__stdout__.errors
"""What a program that is started in this locale does with what cannot be encoded."""
_path: list[str] = []
"""`sys.path` as the program has found it."""


def live(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    streams: list[int],
    inside: int | None,
    is_leader: bool,
) -> NoReturn:
    """The whole life of a program, in a process of multiprocessing's, which it does not notice."""
    become(streams)
    if is_leader:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if inside is not None:
        enter(inside, "net", "uts")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type] # its own children begin as ever
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    tracker = resource_tracker._resource_tracker
    tracker._fd, tracker._pid = None, None  # type: ignore[attr-defined]
    local.StartedRanks = children.StartedRanks = RanksAhead  # type: ignore[misc]
    run.FORKED = sys.maxsize  # they are forked already
    run_server.subprocess = SimpleNamespace(  # type: ignore[assignment]
        PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired, Popen=ForkedPopen
    )
    _path[:] = sys.path
    _execute(words)


def _execute(words: Sequence[str]) -> NoReturn:
    atexit._clear()
    random.seed()
    _draw_seeds()
    is_module = words[0] == "-m"
    if is_module and words[1] in _SERVERS:
        sys.argv = list(words[1:])
        importlib.import_module(words[1]).main()
        os._exit(0)
    live_as_main(words[is_module], words[1 + is_module :], is_module=is_module)


def become(streams: Sequence[int], kept: Sequence[int] = ()) -> None:
    """These are stdin, stdout and stderr; all others but those `kept` are closed."""
    moved = [os.dup(each) for each in streams]  # any of them may be below 3
    for standard, each in enumerate(moved):
        os.dup2(each, standard)
    for number in [int(name) for name in os.listdir("/dev/fd")]:
        if number > 2 and number not in kept:
            with suppress(OSError):  # the one that listed them
                os.close(number)
    sys.stdin = open(0, encoding="utf-8", errors=_ERRORS, closefd=False)  # noqa: SIM115 - open as long as the process lives
    for number, name in ((1, "stdout"), (2, "stderr")):
        errors = _ERRORS if name == "stdout" else "backslashreplace"
        stream = open(number, "w", encoding="utf-8", errors=errors, buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class RanksAhead(local.StartedRanks):
    """Workers of a launcher that has imported torch: forked before it has threads, and told then what to run."""

    def __init__(self, command: local.Command, size: int, folder: Path, shown: ShownConsole | None = None) -> None:
        self._waiting: list[tuple[int, socket.socket]] = []
        die = death_with_parent()
        if die is not None and threading.active_count() == 1:
            signal.pthread_sigmask(signal.SIG_BLOCK, local.PASSED_ON)
            for _ in range(size + SPARE):
                ours, theirs = socket.socketpair()
                pid = os.fork()
                if pid == 0:
                    die()
                    for _pid, of_another in [*self._waiting, (0, ours)]:
                        of_another.close()
                    _live_as_rank(command, theirs.detach())
                theirs.close()
                self._waiting.append((pid, ours))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, local.PASSED_ON)
        super().__init__(command, size, folder, shown)

    def start(self, rank: int, environment: Mapping[str, str]) -> Child:
        if rank >= len(self._waiting):
            return super().start(rank, environment)
        console = QuietConsole(local.log_of(self._folder, rank)) if rank else self._first
        out, err = console.streams()
        nothing = os.open(os.devnull, os.O_RDONLY)
        pid, connection = self._waiting[rank]
        words = "\0".join(f"{name}={value}" for name, value in environment.items()).encode()
        with connection, suppress(OSError):  # where it has died already, its status will say so
            connection.recv(1)
            stdin = 0 if isinstance(console, ShownConsole) else nothing
            socket.send_fds(connection, [b"."], [stdin, out, err])
            connection.sendall(words)
        os.close(nothing)
        console.started()
        return _Forked(pid)

    def finish(self) -> None:
        for _, connection in self._waiting:
            connection.close()
        super().finish()


def _live_as_rank(command: local.Command, number: int) -> NoReturn:
    os.setsid()
    _restore_signals()
    launcher = socket.socket(fileno=number)
    try:
        launcher.sendall(b".")  # signals to this process group have somebody to reach from here on
        told, streams, _, _ = socket.recv_fds(launcher, 1, 3)
    except OSError:
        told = b""
    if not told:
        os._exit(1)
    become(streams, [number])
    words = b"".join(iter(lambda: launcher.recv(2**16), b""))
    launcher.close()
    os.environ.clear()
    os.environ.update(dict(each.split("=", 1) for each in words.decode().split("\0")))
    sys.path[:] = _path
    signal.pthread_sigmask(signal.SIG_UNBLOCK, local.PASSED_ON)
    _execute([*(["-m"] if command.is_module else []), command.script, *command.arguments])


class ForkedPopen(subprocess.Popen[bytes]):
    """Starts the server of a `RunServer` by forking, where the program that asks for it has but one thread."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        if not {*_SERVERS} & {*args} or threading.active_count() > 1:
            return super()._execute_child(args, *given)  # type: ignore[misc,no-any-return]
        environment, pipes = given[5], given[9:15]  # as in `subprocess` from Python 3.11 on
        die = death_with_parent()
        assert die is not None
        self.pid = os.fork()
        if self.pid == 0:
            die()
            os.setsid()
            _restore_signals()
            become([pipes[0], pipes[3], pipes[5]])
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = _path
            _execute([word for word in args[1:] if word != "-P"])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return None


def _restore_signals() -> None:
    for each in local.PASSED_ON:
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
