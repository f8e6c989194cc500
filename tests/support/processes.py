"""Tasks in real processes: `run_real` gives their results, `outcomes_real` what became of each.

The processes are forked from one that has imported torch once, so a world of three starts in some 50 ms.
Nothing here waits past its limit; what is left then is killed, and the error shows where each process hung. Tasks are
functions of a module, or partials of them; what they return must be picklable.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from quorate.core.contracts import Board, Wire
from quorate.core.errors import PeerFailed
from quorate.launch.local.children import Command
from quorate.launch.local.process_group import Crew
from quorate.launch.local.verdict import status_in_words
from quorate.wire.board_server import BoardServer
from tests.support import task as task_module
from tests.support.hosts import Host
from tests.support.launching import LIMIT
from tests.support.seats import here, on_hosts
from tests.support.task import answer_file, main_file, stack_file
from tests.support.zygote import forks

T = TypeVar("T")

STACK_SECONDS = 5.0
"""How long hung processes are given to write their stacks."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of one process."""

    rank: int
    result: T | None = None
    error: BaseException | None = None
    """What its task raised, if it lived to say so."""
    exit_code: int | None = None
    """Minus the signal's number if one ended it; None if it had to be killed at the limit."""
    seconds: float = 0.0
    """From its task's beginning to its end; 0 if it did not live to say so."""
    trace: str = field(default="", repr=False)
    """The traceback of its error, or of every thread where it hung."""

    @property
    def error_type(self) -> type[BaseException] | None:
        return None if self.error is None else type(self.error)

    @property
    def error_message(self) -> str:
        return "" if self.error is None else str(self.error)

    @property
    def is_hung(self) -> bool:
        return self.exit_code is None


class WorkersFailed(AssertionError):
    """A real process hung, was killed, or raised; the message names the rank and shows its traceback."""


def run_real(size: int, task: Callable[[Wire], T], timeout: float = LIMIT, **settings: Any) -> list[T]:
    """The results of `task(wire)` in `size` real processes, by rank. Raises `WorkersFailed`."""
    return _results(_outcomes(size, partial(_with_wire, task), timeout, **settings), timeout)


def run_real_world(size: int, task: Callable[[Any], T], timeout: float = LIMIT, **settings: Any) -> list[T]:
    """As `run_real`; the task gets the `World` that `quorate.join()` returns."""
    return _results(_outcomes(size, partial(_with_world, task), timeout, **settings), timeout)


def run_real_board(size: int, task: Callable[[Board, int, int], T], timeout: float = LIMIT, **settings: Any) -> list[T]:
    """As `run_real`; the task gets a board, its rank and the size, and joins nothing."""
    return _results(_outcomes(size, task, timeout, **settings), timeout)


def outcomes_real(size: int, task: Callable[[Wire], T], timeout: float = LIMIT, **settings: Any) -> list[Outcome[T]]:
    """What became of each of `size` real processes that ran `task(wire)`, by rank; raises nothing of theirs."""
    return _outcomes(size, partial(_with_wire, task), timeout, **settings)


def outcomes_real_world(
    size: int, task: Callable[[Any], T], timeout: float = LIMIT, **settings: Any
) -> list[Outcome[T]]:
    """As `outcomes_real`; the task gets the `World`."""
    return _outcomes(size, partial(_with_world, task), timeout, **settings)


def outcomes_real_board(
    size: int, task: Callable[[Board, int, int], T], timeout: float = LIMIT, **settings: Any
) -> list[Outcome[T]]:
    """As `outcomes_real`; the task gets a board, its rank and the size, and joins nothing."""
    return _outcomes(size, task, timeout, **settings)


def _with_wire(task: Callable[[Wire], T], board: Board, rank: int, size: int) -> T:
    import quorate

    return task(quorate.join().wire)


def _with_world(task: Callable[[Any], T], board: Board, rank: int, size: int) -> T:
    import quorate

    return task(quorate.join())


class Streams:
    """Those of a process that is started, as `Forks` takes them; by default, its output is this process's."""

    def __init__(self, stdin: int = subprocess.DEVNULL, out: int = 1, err: int = 2) -> None:
        self.stdin: int | None = stdin
        self._out, self._err = out, err

    def streams(self) -> tuple[int, int]:
        return self._out, self._err

    def started(self) -> None:
        """They stay open."""


def _outcomes(
    size: int,
    task: Callable[[Board, int, int], T],
    timeout: float,
    *,
    environment: Mapping[str, str] | None = None,
    grace: float | None = None,
    on: Sequence[Host] | None = None,
) -> list[Outcome[T]]:
    """`environment` is added to each process's; `grace` is the crew's (None: nobody is stopped before the limit).

    `on` has the host of each rank (None: this one), where they meet as torchrun's workers do, and no launcher says who
    has died.
    """
    with tempfile.TemporaryDirectory(prefix="quorate-test-") as name:
        folder, server = Path(name), BoardServer(f"{name}/board")
        (folder / "task").write_bytes(pickle.dumps(task))
        if b"__main__" in (folder / "task").read_bytes():  # of a benchmark
            program = sys.modules["__mp_main__"] = sys.modules["__main__"]
            main_file(folder).write_text(str(program.__file__), encoding="utf-8")
        try:
            seats = here(size, server.path) if on is None else on_hosts(on)
            children = []
            for rank in range(size):
                inside = [] if on is None else [str(on[rank].pid)]
                words = [name, str(rank), str(size), server.path, *inside]
                command = Command(script=task_module.__name__, is_module=True, arguments=words)
                own = {**os.environ, **seats[rank], **(environment or {})}
                children.append(forks().start(command, own, Streams()))
            with Crew(children, server.board, grace=grace or max(timeout, LIMIT)) as crew:
                hung = [] if crew.watch(max(timeout, LIMIT)) else crew.alive  # no bar: others may use the machine
                _write_stacks([children[rank].pid for rank in hung])
                stacks = {rank: _stacks(folder, rank) for rank in hung}
        finally:
            server.close()
        answers = [_answer(folder, rank) for rank in range(size)]
    return [
        Outcome(rank, **{**answers[rank], "trace": stacks[rank]}, exit_code=None)
        if rank in hung
        else Outcome(rank, **answers[rank], exit_code=crew.endings[rank].status)
        for rank in range(size)
    ]


def _answer(folder: Path, rank: int) -> dict[str, Any]:
    path = answer_file(folder, rank)
    if not path.exists():
        return {}
    try:
        answer: dict[str, Any] = pickle.loads(path.read_bytes())
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        return {"error": TypeError(f"what rank {rank} answered cannot be read: {error}")}
    return answer


def _write_stacks(pids: list[int | None]) -> None:
    for pid in pids:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGXCPU)


def _stacks(folder: Path, rank: int) -> str:
    """What the process has written about where it is; read until no more comes for a tenth of a second."""
    deadline = time.monotonic() + STACK_SECONDS
    written, grown = "", time.monotonic()
    while time.monotonic() < deadline and not (written.strip() and time.monotonic() - grown > 0.1):
        time.sleep(0.01)
        with suppress(FileNotFoundError):
            now = stack_file(folder, rank).read_text(encoding="utf-8")
            written, grown = now, grown if now == written else time.monotonic()
    return written or "(it did not say where it was)"


def _results(outcomes: list[Outcome[T]], timeout: float) -> list[T]:
    bad = [one for one in outcomes if one.error is not None or one.exit_code != 0]
    if bad:
        # The cause first: who was killed or raised, then who hung in its task, then who was left alone by these.
        bad.sort(key=lambda one: (isinstance(one.error, PeerFailed), one.is_hung, one.is_hung and one.seconds > 0))
        raise WorkersFailed("\n".join(_sentence(one, timeout) for one in bad))
    return [one.result for one in outcomes]  # type: ignore[misc]


def _sentence(one: Outcome[Any], timeout: float) -> str:
    if one.is_hung and one.seconds > 0:
        return f"rank {one.rank} had done its task, but could not leave within the {timeout:g} s"
    if one.is_hung:
        return f"rank {one.rank} hung: it had not ended after {timeout:g} s. It was here:\n{one.trace}"
    if one.error is not None:
        trace = "" if isinstance(one.error, PeerFailed) and one.error.ranks else f"\n{one.trace}"
        return f"rank {one.rank} raised {type(one.error).__name__}: {one.error}{trace}"
    return f"rank {one.rank} {status_in_words(one.exit_code or 0)}"
