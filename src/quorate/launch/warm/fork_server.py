"""A process that has imported torch once, and forks the launcher of every run it is asked for: `RunServer`'s other end.

Its arguments are the modules to import. It reads requests from stdin, one JSON line each, `RunRequest` or
`{"signal": 2}` for the run under way, and writes one line on stdout when it is ready, and one per run when it has
ended. Its end, and the end of its stdin, are the end of the run under way. It has one thread, computes nothing and
touches no GPU, so that what it forks starts clean.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from quorate.launch.local.orphans import death_with_parent
from quorate.launch.local.processes import PASSED_ON, Conclusion
from quorate.launch.local.verdict import status_in_words
from quorate.launch.warm.launcher import launch
from quorate.launch.warm.request import RunRequest, conclusion_line

READY = b'{"ready": true}\n'


def main() -> None:
    """Serve until stdin ends. In a process that was forked meanwhile: that process's whole life."""
    life = _serve(*ready())
    if life is not None:
        life()


def ready() -> tuple[Lines, int]:
    """Import what this program's arguments name, and say so; where requests come from, and where answers go."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for name in sys.argv[1:]:
        with suppress(ImportError):  # a script that needs it will say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a forked process writes to no page that it shares with this one
    os.write(answers, READY)
    return Lines(requests), answers


def _serve(requests: Lines, answers: int) -> Callable[[], None] | None:
    """Returns at the end of `requests`, and in every process that was forked: what that is to do."""
    while (line := requests.next()) is not None:
        if b'"signal"' in line and "signal" in json.loads(line):
            continue  # for a run that has ended meanwhile
        request = RunRequest.from_line(line)
        die_with_server = death_with_parent()
        receiving, sending = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        pid = os.fork()
        if pid == 0:
            if die_with_server is not None:
                die_with_server()
            return launch(request, sending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.close(sending)
        answer = _attend(pid, receiving, requests)
        os.close(receiving)
        os.write(answers, answer)
    return None


def _attend(pid: int, receiving: int, requests: Lines) -> bytes:
    """Return the launcher's answer, once it has ended; signals that arrive meanwhile are passed on to it."""
    answer = b""
    events = select.poll()
    events.register(receiving, select.POLLIN)
    events.register(requests.number, select.POLLIN)
    while True:
        ready = dict(events.poll())
        if receiving in ready:
            piece = os.read(receiving, 2**16)
            if not piece:
                break
            answer += piece
        if requests.number in ready:
            line = requests.next()
            if line is None:
                os.kill(pid, signal.SIGKILL)  # its workers end with it
                events.unregister(requests.number)
            else:
                os.kill(pid, json.loads(line)["signal"])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not answer.endswith(b"\n"):
        return conclusion_line(Conclusion(1, f"the launcher of the workers {status_in_words(status)}"))
    return answer


class Lines:
    """The lines that come from a descriptor; nothing is read beyond what `next` returns, since all may be awaited."""

    def __init__(self, number: int) -> None:
        self.number = number

    def next(self) -> bytes | None:
        """The next one; None at the end."""
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self.number, 1)
            if not piece:
                return None
            line += piece
        return line


if __name__ == "__main__":
    main()
