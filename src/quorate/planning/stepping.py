"""A worker that runs a script for some steps, and keeps how long they took.

What `quorate plan --try` starts on each worker, by `python -m quorate.planning.stepping TOLD SCRIPT [ARGUMENT ...]`.
TOLD is one JSON object, a `Task`. The seconds between the ends of steps go to the file `steps-RANK.json` of the task's
folder; when those of all workers are there, every worker ends.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torch.optim.optimizer import register_optimizer_step_post_hook

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.warm.script import launched_rank, live_as_main

_LOOK_EVERY = 0.005


@dataclass(frozen=True, kw_only=True)
class Task:
    """The instructions of a worker."""

    folder: str
    workers: int
    warm_up: int
    steps: int
    limit: int
    """Seconds after which the worker is killed by the kernel, whatever it does."""
    is_divided: bool
    """Whether the model is to be in pieces, which needs a script that calls `quorate.parallelize`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `quorate.parallelize`, which override the script's."""
    looks_at_blocks: bool = False
    """For `timing_in_pieces`: whether blocks are timed with one example, too."""

    def line(self) -> str:
        """This as JSON."""
        return json.dumps(asdict(self))


def path_of(folder: str | Path, rank: int) -> Path:
    """Return the file of a worker's seconds."""
    return Path(folder, f"steps-{rank}.json")


class Divisions:
    """The calls of `quorate.parallelize` of a script."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.calls = 0
        place: Any = importlib.import_module("quorate.sharding.parallelize")
        public: Any = quorate
        real = place.parallelize

        def with_settings(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return real(*args, **{**kwargs, **settings})

        public.parallelize = place.parallelize = with_settings

    def check(self) -> None:
        """Raises `ConfigurationError` where there were none."""
        if not self.calls:
            raise ConfigurationError("the script does not call quorate.parallelize, so its model cannot be divided")


class _Steps:
    def __init__(self, task: Task, rank: int) -> None:
        self._task, self._rank = task, rank
        self._ends: list[float] = []
        self._optimizer: Any = None
        self._divisions = Divisions(task.settings)

    def ended(self, optimizer: Any, *_: Any) -> None:
        """A step has ended; the first optimizer that steps is the one that is looked at."""
        self._optimizer = optimizer if self._optimizer is None else self._optimizer
        if optimizer is not self._optimizer:
            return
        if self._task.is_divided:
            self._divisions.check()
        self._ends.append(time.perf_counter())
        if len(self._ends) == self._task.warm_up + self._task.steps:
            self._leave()

    def _leave(self) -> NoReturn:
        timed = self._ends[self._task.warm_up - 1 :]
        leave(self._task, self._rank, [end - begin for begin, end in itertools.pairwise(timed)])


def leave(task: Task, rank: int, answer: Any) -> NoReturn:
    """Keep the answer of a worker, and end it when those of all are there."""
    path = path_of(task.folder, rank)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(answer))
    unfinished.replace(path)
    while not all(path_of(task.folder, other).exists() for other in range(task.workers)):
        time.sleep(_LOOK_EVERY)
    os._exit(0)  # nothing that the script registered runs: it was only to be looked at


def serve_tasks(begin: Callable[[Task, int], None]) -> NoReturn:
    """Run the script as the arguments say; `begin(task, rank)` before it."""
    task_json, script, *arguments = sys.argv[1:]
    task = Task(**json.loads(task_json))
    signal.alarm(task.limit)
    begin(task, launched_rank())
    sys.path.pop(0)  # the folder from which this program was started
    live_as_main(script, arguments)


def _begin(task: Task, rank: int) -> None:
    register_optimizer_step_post_hook(_Steps(task, rank).ended)


if __name__ == "__main__":
    serve_tasks(_begin)
