"""Reports of places in code: each worker's stack in a wait that timed out, and which one differs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from quorate.core.contracts import Board
from quorate.core.errors import QuorateError, ranks_in_words
from quorate.core.telling import tell
from quorate.launch.run import requests
from quorate.launch.run.requests import UnderWay, Whereabouts
from quorate.observe.step_times import Timing
from quorate.wire.current import Place
from quorate.wire.real.wire import RealWire

ANSWER_SECONDS = 1.5
"""Seconds to wait for answers; a worker that has not answered by then cannot."""
_LOOK_EVERY = 0.05
_OURS = f"{os.sep}quorate{os.sep}"
_FRAMES = 12


@dataclass
class _Raised:
    """One of each worker."""

    stack: list[traceback.FrameSummary] | None = None
    """The stack of the error."""


def announce(wire: RealWire) -> None:
    """Leave word of which process this is."""
    wire.board.set(f"process/{wire.rank}", f"{os.getpid()} {wire.endpoint.host}".encode())


def progress(place: Place) -> list[int]:
    """How many steps each optimizer has made."""
    timers = place.context(Timing).timers
    return [timer.steps for timer in timers]


def here(wire: RealWire, place: Place, main: int) -> Whereabouts:
    """Return the place of this process: its training thread's stack, its wait and since when, its last calls."""
    frames = sys._current_frames()
    raised = place.context(_Raised).stack
    if raised is not None:  # its wait took too long
        waits, stack = wire.endpoint.gave_up, raised
    else:
        waits = wire.endpoint.waits.get(main)
        stack = list(traceback.extract_stack(frames[main])) if main in frames else []
    return Whereabouts(
        stack=[f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in stack][-_FRAMES:],
        script=_in_script(stack),
        waits=None if waits is None else _waits(wire.rank, *waits),
        now=time.monotonic(),
        recent=[f"{channel} #{count} {operation}" for channel, count, operation in wire.endpoint.recent],
        steps=progress(place),
        threads=_other_threads(frames, main),
    )


def _waits(rank: int, operation: str, needed: Collection[int], since: float) -> UnderWay:
    is_round = list(needed) == [rank]  # its own progress task tells a worker of rounds
    return UnderWay("the next round" if is_round else operation, list(needed), since)


def _in_script(stack: list[traceback.FrameSummary]) -> str:
    """The innermost line that is neither Quorate's nor torch's."""
    own = [frame for frame in stack if _OURS not in frame.filename and f"{os.sep}torch{os.sep}" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _other_threads(frames: Mapping[int, FrameType], main: int) -> dict[str, str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    places = {}
    for ident, frame in frames.items():
        if ident != main and ident != threading.get_ident():
            places[names.get(ident, str(ident))] = (
                f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            )
    return places


def report(wire: RealWire, place: Place, main: int, why: str) -> None:
    """Ask everyone where they are, and tell it on stderr and, for the launcher to show, on the board.

    Takes `ANSWER_SECONDS` at most. Whoever does not answer is asked to write its stack into its own log. Of several
    workers that report the same `why`, one does; the others wait until it has.
    """
    board = wire.board
    if not requests.is_first_to_report(board, why, wire.rank):
        with suppress(QuorateError):
            requests.wait_until_reported(board, why, 2 * ANSWER_SECONDS)
        return
    number = requests.ask_where(board)
    answers: dict[int, Whereabouts | None] = dict.fromkeys(range(wire.size))
    requests.say_where(board, number, wire.rank, here(wire, place, main))
    deadline = time.monotonic() + ANSWER_SECONDS
    while None in answers.values() and time.monotonic() < deadline:
        for rank in [rank for rank, answer in answers.items() if answer is None]:
            answers[rank] = requests.said_where(board, number, rank)
        if None in answers.values():
            time.sleep(_LOOK_EVERY)
    unanswered = [rank for rank, answer in answers.items() if answer is None]
    silent = {rank: _ask_by_signal(board, rank, wire.endpoint.host) for rank in unanswered}
    text = compose(answers, silent, why)
    tell(text)
    requests.tell_all(board, why, wire.rank, text)


def _ask_by_signal(board: Board, rank: int, host: str) -> str:
    """Make it write its stack to its log, and return the state of the process as seen from outside."""
    written = (board.get(f"process/{rank}") or b"").decode().split()
    if len(written) != 2:
        return "has not joined"
    if written[1] != host:
        return f"does not answer (process {written[0]} on {written[1]})"
    pid = int(written[0])
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "tT":
            return "does not answer: its process is stopped (as by SIGSTOP)"
    try:
        os.kill(pid, signal.SIGUSR2)
    except OSError:
        return "does not answer: its process has ended"
    return "does not answer: it is in a call that keeps Python locked; its stack is in its log"


def compose(answers: Mapping[int, Whereabouts | None], silent: Mapping[int, str], why: str) -> str:
    """Return the report: first the worker that differs, then each rank."""
    lines = [f"quorate: {why}: {odd_one_out(answers, silent)}"]
    for rank, answer in answers.items():
        if answer is None:
            lines.append(f"  rank {rank} {silent.get(rank, 'does not answer')}")
            continue
        steps = f", after step {max(answer.steps)}" if answer.steps else ""
        lines.append(f"  rank {rank} {_does(answer)}{steps}")
        lines += [f"    | {line}" for line in answer.stack]
        if answer.recent:
            lines.append(f"    last collectives: {'; '.join(answer.recent)}")
    return "\n".join(lines) + "\n"


def _does(answer: Whereabouts) -> str:
    waits = answer.waits
    if waits is None:
        return f"computes in {answer.script}" if answer.script else "computes"
    seconds = answer.now - waits.since
    return f"has waited {seconds:.1f} s in {waits.operation}"


def odd_one_out(answers: Mapping[int, Whereabouts | None], silent: Mapping[int, str]) -> str:
    """Return a sentence about the workers that are not where the others are."""
    if silent:
        first = min(silent)
        more = "" if len(silent) == 1 else f", and so {'does' if len(silent) == 2 else 'do'} "
        others = ranks_in_words(rank for rank in silent if rank != first)
        return f"rank {first} {silent[first]}" + (f"{more}{others}" if len(silent) > 1 else "")
    known = {rank: answer for rank, answer in answers.items() if answer is not None}
    busy = [rank for rank, answer in known.items() if answer.waits is None]
    waiting = [rank for rank in known if rank not in busy]
    if busy and waiting:
        does = "; ".join(f"rank {rank} {_does(known[rank])}" for rank in busy[:4])
        return f"{does}, while {ranks_in_words(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"
    places = {rank: "" if answer.waits is None else answer.waits.operation for rank, answer in known.items()}
    (most, count), *rest = Counter(places.values()).most_common()
    odd = [rank for rank, place in places.items() if place != most]
    if rest and rest[0][1] < count:
        does = "; ".join(f"rank {rank} waits in {places[rank]}" for rank in odd[:4])
        return f"{does}, and the others in {most}"
    if rest:
        return "workers wait in different places: " + "; ".join(f"rank {rank} in {at}" for rank, at in places.items())
    return f"all wait in {most}" if most else "nobody waits"


def report_quietly(wire: RealWire, place: Place, why: str, trace: TracebackType | None) -> None:
    """Report as `report`, for a worker that is about to fail at `trace`; raises nothing if the board has ended."""
    place.context(_Raised).stack = list(traceback.extract_tb(trace))
    with suppress(QuorateError, OSError):
        report(wire, place, threading.get_ident(), why)
