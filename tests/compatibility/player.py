"""The processes that play cases for `make compatibility`; each forks those of its trainings from itself."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from quorate.launch.local.orphans import death_with_parent
from quorate.launch.warm.forks import CAN_FORK, keeping
from quorate.launch.warm.zygote import freeze_objects
from tests.compatibility.journal import Journal, key_of, words_of
from tests.compatibility.laws import Verdict
from tests.compatibility.progress import Progress
from tests.support.zygote import PRELOADED, ForksOfThis

T = TypeVar("T")
R = TypeVar("R")
LOOK_SECONDS = 0.5
"""Seconds between two views of the progress while no case ends."""
LEAVE_SECONDS = 5.0
"""Seconds that an interrupted process has to remove its files and end its trainings."""


class Player:
    """A context that plays cases in processes forked from this one, and keeps each result in a journal.

    What the processes and their trainings write goes to a file beside that of the journal.

    Args:
        workers: The number of processes, which is that of the trainings at a time.
        journal: The results of earlier runs of this code, which are not played again.
        progress: Is told of each result.
        in_processes: Whether trainings have processes of their own, for which everything is imported before.
    """

    def __init__(self, workers: int, journal: Journal, progress: Progress, *, in_processes: bool = False) -> None:
        self._workers, self._journal, self._progress = workers, journal, progress
        self._in_processes = in_processes
        self._processes: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> Player:
        if self._in_processes:
            importlib.import_module(PRELOADED)
        output = self._journal.path.with_suffix(".log")
        output.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("fork")
        die_with_parent = death_with_parent()
        for _ in range(self._workers):
            ours, theirs = context.Pipe()
            chosen = {"forks_trainings": self._in_processes and CAN_FORK}
            process = context.Process(target=_live, args=(theirs, output, die_with_parent), kwargs=chosen)
            process.start()
            theirs.close()
            self._processes[ours] = process
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.end()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(LEAVE_SECONDS)
            process.kill()
            process.join()

    def mapped(self, stage: str, function: Callable[[T], R], cases: Sequence[T], *, is_final: bool = True) -> list[R]:
        """Return what a function makes of each case.

        Args:
            stage: The name of this stage in the progress.
            function: A function of a module.
            cases: Its arguments, of choices and names.
            is_final: Whether a verdict "fails" is one: rows that fail are played again, by pairs.
        """
        keys = [key_of(function, case) for case in cases]
        pending = [place for place in reversed(range(len(cases))) if keys[place] not in self._journal]
        failures = sum(is_final and _fails(self._journal[key]) for key in keys if key in self._journal)
        self._progress.begin(stage, len(cases), len(cases) - len(pending), failures)
        played: dict[Connection, int] = {}
        for connection in self._processes:
            self._give(connection, function, cases, pending, played)
        while played:
            for connection in wait([*played], LOOK_SECONDS):
                assert isinstance(connection, Connection)
                place = played.pop(connection)
                result = self._received(connection, keys[place])
                self._journal.add(keys[place], result)
                fails = is_final and _fails(result)
                self._progress.advance(f"{words_of(cases[place])}: {result.words}" if fails else "")
                self._give(connection, function, cases, pending, played)
            self._progress.show()
        self._progress.end()
        return [self._journal[key] for key in keys]

    def _give(
        self,
        connection: Connection,
        function: Callable[[T], R],
        cases: Sequence[T],
        pending: list[int],
        played: dict[Connection, int],
    ) -> None:
        if pending:
            place = played[connection] = pending.pop()
            connection.send((function, cases[place]))

    def _received(self, connection: Connection, key: str) -> Any:
        try:
            result, error = connection.recv()
        except (EOFError, ConnectionError):
            process = self._processes[connection]
            process.join()
            raise RuntimeError(f"the process that played {key} ended with status {process.exitcode}") from None
        if error is not None:
            raise error
        return result


def _fails(result: Any) -> bool:
    return isinstance(result, Verdict) and result.state == "fails"


def _live(
    connection: Connection, output: Path, die_with_parent: Callable[[], None] | None, *, forks_trainings: bool
) -> NoReturn:
    """Play cases until this process is terminated."""
    if die_with_parent is not None:
        die_with_parent()
    torch.set_num_threads(1)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    atexit._clear()  # what this program has imported for
    freeze_objects()
    with ExitStack() as stack:
        if forks_trainings:
            forks = ForksOfThis()
            stack.callback(forks.__exit__)
            forks.wait()
            stack.enter_context(keeping(forks))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to this process, too, which is terminated
        signal.signal(signal.SIGTERM, _leave)
        while True:
            function, case = connection.recv()
            try:
                answer = function(case), None
            except Exception as error:
                answer = None, error
            connection.send(answer)


def _leave(*_: object) -> NoReturn:
    raise SystemExit
