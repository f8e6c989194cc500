"""Signals to the launcher of real workers."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from quorate.core.contracts import Board
from quorate.launch.local.process_group import Crew
from quorate.launch.run.requests import ASKS

_STACKS, _STOP = signal.SIGUSR2, signal.SIGTSTP
Shows = Callable[[int, str], None]


@contextlib.contextmanager
def signals_to(crew: Crew, board: Board, folder: Path, shows: Shows) -> Iterator[None]:
    """While in force, what asks this process to end is passed on to the workers. In the main thread only.

    Once asked, this process ends, and its sentences are not interrupted by being asked again: such signals stay
    without effect. Ctrl-Z stops the workers too, until they all go on; SIGUSR2 lets them write their stacks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [signum for signum in (*ASKS, _STACKS, _STOP) if signal.getsignal(signum) is not signal.SIG_IGN]

    def stop(signum: int, frame: object) -> None:
        shows(-1, "quorate: stopped, and the workers with it; fg or bg lets all go on\n")
        crew.signal_alive(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when this process goes on
        crew.signal_alive(signal.SIGCONT)

    def write_stacks(signum: int, frame: object) -> None:
        joined = [rank for rank in crew.alive if board.get(f"process/{rank}") is not None]
        crew.tell_alive(_STACKS, joined)
        shows(-1, f"quorate: {len(joined)} workers have been told to write their stacks to their logs in {folder}\n")

    handlers = {_STACKS: write_stacks, _STOP: stop}
    before = {
        signum: signal.signal(signum, handlers.get(signum, lambda number, frame: crew.pass_on(number)))
        for signum in taken
    }
    try:
        yield
    finally:
        for signum, handler in before.items():
            is_late = crew.interrupted_by is not None and signum in ASKS
            signal.signal(signum, signal.SIG_IGN if is_late else handler)  # Python resets others early
