"""Requests between the processes of a run over the board, beside their work: to leave, and to report where they are.

`stop` holds the exit status with which all workers leave, in decimal. `where` is the number of the newest request for
positions, `where/<number>/<rank>` the `Whereabouts` of each worker, `where said` the `Report` made of these.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quorate.core.contracts import Board
from quorate.core.fields import Fields, Header
from quorate.observe.stopping import INTERRUPTED, RETRY

ASKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a process to end: Ctrl-C; a scheduler that needs room; a closed terminal; Slurm's early warning."""
LEFT_WHEN_ASKED = (INTERRUPTED, RETRY)
"""How a worker ends that was asked to leave and has left in order."""
_STOP, _WHERE, _SAID = "stop", "where", "where said"


@dataclass(frozen=True, slots=True)
class UnderWay(Fields):
    """A wait that has not ended."""

    operation: str
    ranks: Sequence[int]
    since: float  # by the clock of its process

    def header(self) -> dict[str, Any]:
        return {"for": self.operation, "ranks": self.ranks, "since": self.since}

    @classmethod
    def read(cls, header: Header, **others: Any) -> UnderWay:
        return cls(header["for"], header["ranks"], header["since"])


@dataclass(frozen=True, slots=True)
class Whereabouts(Fields):
    """The place of one worker in its script."""

    stack: Sequence[str]
    script: str  # the innermost line that is neither Quorate's nor torch's
    waits: UnderWay | None
    now: float  # by the clock of its process
    recent: Sequence[str]  # its last collectives
    steps: Sequence[int]  # of each optimizer
    threads: Mapping[str, str]  # the places of other threads, by name

    def header(self) -> dict[str, Any]:
        return Fields.header(self) | {"waits": None if self.waits is None else self.waits.header()}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Whereabouts:
        place = super(Whereabouts, cls).read(header, **others)
        return place if header["waits"] is None else replace(place, waits=UnderWay.read(header["waits"]))


@dataclass(frozen=True, slots=True)
class Report(Fields):
    """The report of a worker about all of them."""

    rank: int
    text: str


def status_after(signum: int) -> int:
    """The exit status of a run that was asked to end: whether a person did, or it may well be started again."""
    return RETRY if signum in (signal.SIGTERM, signal.SIGUSR1) else INTERRUPTED


@contextlib.contextmanager
def asked_in_one_process() -> Iterator[list[signal.Signals]]:
    """While in force, what asks this process to end raises `KeyboardInterrupt`, and is noted (in the main thread)."""
    asked: list[signal.Signals] = []

    def note(signum: int, frame: object) -> None:
        asked.append(signal.Signals(signum))
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        for signum in ASKS if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as after nohup
                stack.callback(signal.signal, signum, signal.signal(signum, note))
        yield asked


def ask_to_stop(board: Board, status: int) -> None:
    """Ask every worker to leave in order; the first to ask chooses the status."""
    board.swap(_STOP, None, b"%d" % status)


def asked_to_stop(board: Board) -> int | None:
    """The status, if all are asked to leave."""
    written = board.peek(_STOP)
    return None if written is None else int(written)


def ask_where(board: Board) -> int:
    """Ask every worker where it is, and return the number of the question, which replaces an unanswered one."""
    number = board.add(f"{_WHERE}/asked")
    board.set(_WHERE, b"%d" % number)
    return number


def asked_where(board: Board) -> int:
    """The number of the newest question; 0 while there is none."""
    written = board.peek(_WHERE)
    return 0 if written is None else int(written)


def say_where(board: Board, number: int, rank: int, place: Whereabouts) -> None:
    """Answer it."""
    board.set(f"{_WHERE}/{number}/{rank}", place.to_bytes())


def said_where(board: Board, number: int, rank: int) -> Whereabouts | None:
    """Return the answer of `rank`."""
    written = board.get(f"{_WHERE}/{number}/{rank}")
    return None if written is None else Whereabouts.from_bytes(written)


def left(rank: int) -> str:
    """The key under which `rank` writes that it has done all it had to do with the others."""
    return f"left/{rank}"


def is_first_to_report(board: Board, why: str, rank: int) -> bool:
    """Whether `rank` is to ask everyone, of several that find the same at the same time."""
    return board.swap(f"{_SAID}/{why}", None, b"%d" % rank)


def tell_all(board: Board, why: str, rank: int, text: str) -> None:
    """Write the report of `rank`, which it has written to its stderr, for the others and the launcher."""
    board.set(f"{_SAID}/{why}/text", text.encode())
    board.set(_SAID, Report(rank, text).to_bytes())


def wait_until_reported(board: Board, why: str, seconds: float) -> None:
    """Return when a worker has reported. Raises as `Board.wait`."""
    board.wait([f"{_SAID}/{why}/text"], seconds)


def tell_on(rank: int, source: Board, target: Board) -> None:
    """Write at `target` what stands at `source` of the newest report, and of the process of `rank`."""
    for key in (_SAID, f"process/{rank}"):
        written = source.peek(key)
        if written is not None and target.get(key) != written:
            target.set(key, written)


def newest_report(board: Board) -> Report | None:
    """Return the newest report."""
    written = board.get(_SAID)
    return None if written is None else Report.from_bytes(written)
