"""`run_shown`: the workers of one script as processes on this machine, from their start to the last sentence."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from quorate.core.contracts import Board
from quorate.core.telling import tell
from quorate.launch.local.chaos import Chaos, ChaosPlan
from quorate.launch.local.children import Child, Command, StartedRanks, Starter, hash_seed
from quorate.launch.local.console import ShownConsole
from quorate.launch.local.live_goodput import LiveGoodput
from quorate.launch.local.newcomers import Newcomers, Room, open_to_all
from quorate.launch.local.orphans import Guard
from quorate.launch.local.process_group import GRACE, WRONG_INPUT, Crew
from quorate.launch.local.verdict import cause_of, log_of, nobody_joined, verdict
from quorate.launch.run.overrides import why_unused
from quorate.launch.run.requests import ASKS, asked_to_stop, status_after
from quorate.observe.stopping import INTERRUPTED
from quorate.wire.board_server import BoardServer
from quorate.wire.failure import has_erred, has_joined, noted_place, read_failure
from quorate.wire.members import read_deaths
from quorate.wire.socket_folder import make_socket_folder

LACKING = 3
NO_ROOM = Room()
_OF_OTHER_LAUNCHERS = ("TORCHELASTIC_", "QUORATE_", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_")
_OF_WORKERS = ("QUORATE_GPU_BACKEND",)
"""Our own that are meant for workers."""
PASSED_ON = ASKS
"""Signals that the launcher passes on to the workers."""

_STACKS, _STOP = signal.SIGUSR2, signal.SIGTSTP
Shows = Callable[[int, str], None]


@dataclass(frozen=True)
class Conclusion:
    """How a run ended: its exit status, and where it is not 0 why, for people: a sentence, then lines about it."""

    status: int
    why: str | None = None


class Ranks(Protocol):
    """The workers to be, by rank."""

    def start(self, rank: int, environment: Mapping[str, str]) -> Child:
        """Let `rank` begin; once each, in order."""

    def finish(self) -> None:
        """All that were started have ended."""


def run_shown(
    command: Command,
    size: int,
    folder: Path,
    *,
    grace: float = GRACE,
    room: Room = NO_ROOM,
    chaos: ChaosPlan | None = None,
    starter: Starter | None = None,
    servers: int = 0,
    begins: Callable[[], None] = lambda: None,
) -> Conclusion:
    """Run `size` workers of `command`, and return how the run ended, which was printed on stderr.

    `begins` is called when they are about to start, before this process has a thread.

    `starter` starts them as `StartedRanks` says. With `servers` (not with `room`) so many more are started, with ranks
    from `size` on, that keep parameters for them.

    Each worker's output goes to `folder`, rank 0's is shown too. 0: all ended well. 1: one did not; a sentence on
    stderr says which was first and why (2 where that one ended with 2, which means wrong input). 130 or 75: a signal
    was passed on to the workers: see `Crew.pass_on`. While it runs, others may join: as many as there is `room` for;
    and `chaos` strikes them. No worker, and nothing that a worker started in its process group, outlives this call;
    workers do not outlive this process either.
    """
    shown = ShownConsole(log_of(folder, 0), sys.stdout.buffer, sys.stderr.buffer)
    with StartedRanks(command, size, folder, shown, starter) as ranks, shown.following_size():
        begins()
        more: dict[str, Any] = {"grace": grace, "room": room, "chaos": chaos, "shows": show, "asked": shown.hide}
        ended = run_crew(command, size, folder, ranks, servers=servers, **more)
    if ended.why is not None:
        show(-1, f"quorate: {ended.why}\n")
    return ended


def show(rank: int, text: str) -> None:
    """On stderr, unless it is of rank 0, which is shown anyway; a terminal that was closed shows nothing."""
    if rank != 0:
        tell(text)


def run_crew(
    command: Command,
    size: int,
    folder: Path,
    ranks: Ranks,
    *,
    grace: float = GRACE,
    room: Room = NO_ROOM,
    chaos: ChaosPlan | None = None,
    shows: Callable[[int, str], None] = lambda rank, text: None,
    asked: Callable[[], None] = lambda: None,
    servers: int = 0,
    begun: Callable[[Crew], None] = lambda crew: None,
) -> Conclusion:
    """Run as `run_shown`, for workers of any kind; prints nothing itself (`shows`: see `Crew`).

    `asked` is called if all are asked to end, and rank 0 has not joined yet; `begun` once they are there.
    """
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_board())
        shared = environment(size, server.path, folder, command)

        def start(rank: int, replaced_rank: int) -> None:
            crew.join(ranks.start(rank, {**shared, "RANK": str(rank), "LOCAL_RANK": str(replaced_rank)}))
            if crew.chaos is not None and rank >= size:
                crew.chaos.started(rank, replaced_rank)

        newcomers = None
        if servers:
            shared |= {"QUORATE_MAX_WORKERS": str(size + servers), "QUORATE_SERVERS": str(servers)}
        if room.all:
            shared["QUORATE_MAX_WORKERS"] = str(size + room.all)
            newcomers = Newcomers(server.board, size, room, start, repair=chaos.failures.repair if chaos else 0.0)
            stack.enter_context(open_to_all(folder, server.path))
        guard = stack.enter_context(Guard())
        hides = partial(_unless_joined, server.board, asked)
        more: dict[str, Any] = {"grace": grace, "leave_within": command.overrides.leave_within}
        crew = Crew([], server.board, newcomers=newcomers, shows=shows, guard=guard, asked=hides, **more)
        stack.enter_context(crew)
        crew.goodput = LiveGoodput(folder)
        if chaos is not None:
            crew.chaos = Chaos(chaos, size, server.board, crew, folder, says=lambda s: shows(-1, f"quorate: {s}\n"))
        stack.enter_context(signals_to(crew, server.board, folder, shows))
        for rank in range(size + servers):
            start(rank, rank)
        begun(crew)
        crew.watch()
        ranks.finish()
        return _conclusion(command, size, crew, server, folder, servers)


def _unless_joined(board: Board, asked: Callable[[], None]) -> None:
    """Call `asked` if rank 0 has not joined: its output about an interrupt is a traceback through imports."""
    if not has_joined(board, 0):
        asked()


def environment(size: int, board: str, folder: Path, command: Command) -> dict[str, str]:
    """Return the environment of all workers; RANK and LOCAL_RANK are each worker's own.

    Variables of other launchers are removed. MASTER_PORT is free, for scripts that start the default process group
    themselves; nothing of ours listens there.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _OF_WORKERS or not name.startswith(_OF_OTHER_LAUNCHERS)
    }
    ours = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": hash_seed(),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # or a run after a crash meets the addresses of the dead
        "QUORATE_BOARD": f"unix:{board}",
        "QUORATE_RUN": str(folder.resolve()),
    }
    return {**kept, **ours, **command.overrides.environment()}


@contextlib.contextmanager
def _board() -> Iterator[BoardServer]:
    """A board in a folder of its own whose path is short enough for a socket."""
    folder = make_socket_folder()
    server = BoardServer(folder / "board")
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _conclusion(command: Command, size: int, crew: Crew, server: BoardServer, folder: Path, servers: int) -> Conclusion:
    if crew.interrupted_by is not None and any(ending.status for ending in crew.endings.values()):
        why = f"ended by {crew.interrupted_by.name}; every worker has ended"
        return Conclusion(status_after(crew.interrupted_by), why)
    if crew.first_failure is None:
        asked = asked_to_stop(server.board)
        erred = [death for death in read_deaths(server.board) if has_erred(server.board, death.rank)]
        if erred:
            where = f"its log is {log_of(folder, erred[0].rank)}"
            return Conclusion(1, f'{erred[0].in_words}, and the others went on (on_error="continue"); {where}')
        if asked is None or not any(ending.status for ending in crew.endings.values()):
            is_served = not servers or has_joined(server.board, 0)
            if not is_served:
                return Conclusion(WRONG_INPUT, nobody_joined(servers))
            unused = why_unused(server.board, command.overrides, size)
            return Conclusion(0) if unused is None else Conclusion(1, unused)
        return Conclusion(asked, "the workers were asked to leave; every worker has ended")
    reported = read_failure(server.board)
    why = verdict(crew.endings, crew.first_failure, reported, folder, noted_place(server.board))
    cause = cause_of(crew.endings, crew.first_failure, reported)
    begun_by = crew.first_failure if cause is None else crew.endings[cause]
    is_told = begun_by.status in (WRONG_INPUT, INTERRUPTED)
    is_told |= begun_by.status == LACKING and "raised MissingExtra: " in why
    return Conclusion(begun_by.status if is_told else 1, why)


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
