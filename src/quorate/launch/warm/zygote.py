"""A process that has imported torch once, and forks every process it is asked for: the other end of `Forks`.

Its arguments are the modules to import. Its stdin is a socket. It receives requests: a length, JSON, and the three
standard streams of the new process. It sends lines: that it is ready, which process was forked, and which process has
ended. Its end, and the end of the socket, are the end of all it has forked. It has one thread, computes nothing and
touches no GPU, so that processes start clean. From the first line of its script on such a process is as one that was
started: a session, descriptors, generators, environment and `__main__` of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from quorate.launch.local.orphans import death_with_parent
from quorate.launch.run.requests import ASKS
from quorate.launch.takeover.starting import take_over_if_asked
from quorate.launch.warm.script import live_as_main

LENGTH = struct.Struct("!I")
STREAMS = 3


def main() -> None:
    """Serve until the socket ends. In a process that was forked meanwhile: that process's whole life."""
    client = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for name in sys.argv[1:]:
        with suppress(ImportError):  # a script that needs it will say so
            importlib.import_module(name)
    freeze_objects()
    life = serve(client)
    if life is not None:
        life()


def freeze_objects() -> None:
    """Let processes that are forked from this one write to few pages that they share with it."""
    # At the end of each process torch would take its operators out of its tables: 35 ms, and copies of 8,000 pages.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    gc.collect()
    gc.freeze()  # a collection in a forked process leaves out these objects


def serve(client: socket.socket) -> Callable[[], None] | None:
    """Returns at the end of `client`, and in every process that was forked: what that is to do."""
    die_with_zygote = death_with_parent()
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    before = signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    events = select.poll()
    events.register(woken, select.POLLIN)
    events.register(client, select.POLLIN)
    _tell(client, ready=1)
    while True:
        with suppress(BlockingIOError):
            os.read(woken, 2**10)
        for pid, status in iter(_next_ended, None):
            _tell(client, ended=pid, status=status)
        if client.fileno() not in dict(events.poll()):
            continue
        request, streams = _received(client)
        if request is None:
            return None
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKS)
        answer = {}
        try:
            pid = answer["born"] = os.fork()
        except OSError as error:
            pid, answer["refused"] = -1, error.errno or 0
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
            if die_with_zygote is not None:
                die_with_zygote()
            return lambda: _live(streams, **request)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS)
        for stream in streams:
            os.close(stream)
        _tell(client, **answer)


def _next_ended() -> tuple[int, int] | None:
    with suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            return pid, os.waitstatus_to_exitcode(status)
    return None


def _received(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    head, streams, _, _ = socket.recv_fds(client, LENGTH.size, STREAMS)
    if not head:
        return None, []
    text = b""
    (length,) = LENGTH.unpack(head)
    while len(text) < length:
        piece = client.recv(length - len(text))
        if not piece:
            return None, streams
        text += piece
    return json.loads(text), streams


def _tell(client: socket.socket, **words: int) -> None:
    with suppress(OSError):  # it has ended, as reading says
        client.sendall(json.dumps(words).encode() + b"\n")


def _live(
    streams: Sequence[int],
    *,
    script: str,
    arguments: Sequence[str],
    is_module: bool,
    environment: dict[str, str],
    folder: str,
) -> None:
    """The whole life of a process that was forked, with `ASKS` blocked."""
    os.setsid()
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
    for number in [int(name) for name in os.listdir("/dev/fd")]:
        if number >= STREAMS:
            with suppress(OSError):  # the one that listed them
                os.close(number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _draw_seeds()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS)
    take_over_if_asked()
    live_as_main(script, arguments, is_module=is_module)


def _draw_seeds() -> None:
    """Default generators begin anywhere, as in a fresh process (python's own one is drawn again at every fork)."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


if __name__ == "__main__":
    main()
