"""The process of `tests.support.processes`: it does one task of a test, and keeps what it returned or raised."""

from __future__ import annotations

import faulthandler
import os
import pickle
import runpy
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pickle import PicklingError
from typing import Any

from quorate.core.contracts import Board
from quorate.core.errors import PeerFailed
from quorate.wire import current
from quorate.wire.board import SocketBoard
from quorate.wire.failure import report_death, report_failure
from quorate.wire.real.kept_board import KeptBoard
from quorate.wire.survivors import DeathTolerance
from tests.support.hosts import enter


def main() -> None:
    """The arguments: the folder of the task, the rank, the size, the board, and a process on whose host it is to be."""
    folder, rank, size, path, *inside = sys.argv[1:]
    place, number = Path(folder), int(rank)
    for host in inside:
        enter(int(host), "net", "uts")
        os.chdir(folder)  # for records, as of workers that quorate run has not started
    stacks = open(stack_file(place, number), "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
    faulthandler.register(signal.SIGXCPU, file=stacks)
    board = SocketBoard(path)
    _take_main(place)
    task = pickle.loads((place / "task").read_bytes())
    began = time.monotonic()
    try:
        result = task(board, number, int(size))
    except BaseException as error:
        seconds = time.monotonic() - began
        _report(board, number, error)
        _answer(place, number, {"error": error, "seconds": seconds, "trace": traceback.format_exc()})
        sys.stdout.flush()
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)
    _answer(place, number, {"result": result, "seconds": time.monotonic() - began})


def _take_main(place: Path) -> None:
    """Let functions of the program that asked be found in `__main__`, as multiprocessing does."""
    program = main_file(place)
    if program.exists():
        main_module = sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__mp_main__")
        main_module.__dict__.update(runpy.run_path(program.read_text(encoding="utf-8"), run_name="__mp_main__"))


def _report(board: SocketBoard, rank: int, error: BaseException) -> None:
    worker = current.place()
    known: Board = board
    with suppress(PeerFailed):  # the board is gone: nobody is left to be told
        known = known if worker is None else worker.wire.board
        report: Callable[[Board, int, str], object] = report_failure
        if (
            worker is not None
            and isinstance(error, PeerFailed)
            and worker.context(DeathTolerance).dead_of_replica(worker.wire.dead)
        ):
            report = report_death  # as a worker does that has lost a part of its replica
        report(known, rank, f"raised {type(error).__name__}: {error}")
    if isinstance(known, KeptBoard):
        known.close()


def _answer(place: Path, rank: int, answer: dict[str, Any]) -> None:
    try:
        text = pickle.dumps(answer)
    except (AttributeError, TypeError, ValueError, PicklingError) as error:
        # What cannot be pickled is told as what it looks like.
        about = repr(answer.get("error", answer.get("result")))
        lacking = TypeError(f"{about} cannot be sent to the test: {error}")
        text = pickle.dumps({**answer, "result": None, "error": lacking})
    part = place / f"part-{rank}"
    part.write_bytes(text)
    part.rename(answer_file(place, rank))


def stack_file(folder: Path, rank: int) -> Path:
    """Where the stacks of `rank` are written on SIGXCPU."""
    return folder / f"stacks-{rank}"


def main_file(folder: Path) -> Path:
    """Where the path of the program is written that the task is a function of, if it is no module."""
    return folder / "main"


def answer_file(folder: Path, rank: int) -> Path:
    """What `rank` returned or raised."""
    return folder / f"answer-{rank}"


if __name__ == "__main__":
    main()
