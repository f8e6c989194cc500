"""The process behind a `Nursery`: it has imported torch once, and forks all workers of a run but the first.

Its arguments are the modules to import. It reads one JSON line for each worker from stdin, and writes one line on
stdout when it is ready, one when a worker is there, and one when a worker has ended. Its end, and the end of its stdin,
are the end of its workers. It has one thread, computes nothing and touches no GPU.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from quorate.launch.local.children import Child, Command
from quorate.launch.local.processes import PASSED_ON
from quorate.launch.warm.fork_server import Lines, ready
from quorate.launch.warm.ranks import ForkedRanks

_LOOK_EVERY = 20
"""Milliseconds between two checks for ended workers."""


def main() -> None:
    """Serve until stdin ends. In a process that was forked meanwhile: that process's whole life."""
    life = _serve(*ready())
    if life is not None:
        life()


def _serve(requests: Lines, answers: int) -> Callable[[], None] | None:
    """Returns at the end of `requests`, and in every process that was forked: what that is to do."""
    workers: dict[int, Child] = {}
    events = select.poll()
    events.register(requests.number, select.POLLIN)
    while True:
        if events.poll(_LOOK_EVERY if workers else None):
            line = requests.next()
            if line is None:
                return None
            asked = json.loads(line)
            rank, command = asked["rank"], Command(**asked["command"])
            signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
            forked = ForkedRanks.fork(command, [rank], Path(asked["folder"]), is_new=False)
            if not isinstance(forked, ForkedRanks):
                return forked
            worker = forked.start(rank, asked["environment"])
            assert worker.pid is not None
            workers[worker.pid] = worker
            _tell(answers, born=worker.pid)
        for pid, worker in list(workers.items()):
            status = worker.poll()
            if status is not None:
                del workers[pid]
                _tell(answers, ended=pid, status=status)


def _tell(answers: int, **words: int) -> None:
    os.write(answers, json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    main()
