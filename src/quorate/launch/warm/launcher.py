"""The launcher of one run: a process of its own that carries out a `RunRequest` and says how it ended.

It is forked from the fork server, and its workers are too; or it is started as a program, which starts its workers as
programs, here or on other hosts: `python -m quorate.launch.warm.launcher`, with the request on stdin and the answer on
stdout.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from quorate.core.errors import ConfigurationError, QuorateError
from quorate.launch.hosts.ranks import HostRanks
from quorate.launch.hosts.reach import Hosts
from quorate.launch.local.children import StartedRanks
from quorate.launch.local.orphans import watch_launcher
from quorate.launch.local.process_group import WRONG_INPUT
from quorate.launch.local.processes import PASSED_ON, Conclusion, run_crew
from quorate.launch.local.verdict import log_of
from quorate.launch.run.requests import asked_in_one_process, status_after
from quorate.launch.warm.ranks import KEPT, ForkedRanks, stand_alone
from quorate.launch.warm.request import RunRequest, VirtualRun, conclusion_line, run_request
from quorate.launch.warm.script import flush_files

CONSOLE = "console.log"
"""The file of a virtual run's console output, in its folder."""


def launch(request: RunRequest, answer: int) -> Callable[[], None]:
    """In a process just forked, with `PASSED_ON` blocked: what it is to do, a worker's life if it has become one."""
    _stand_alone(request, answer)
    carry_out: Callable[[], Conclusion]
    if request.virtual is not None:
        carry_out = partial(_run_virtual, request, request.virtual)
    else:
        try:
            ranks = ForkedRanks.fork(request.command, range(request.size), request.folder)
        except OSError as error:
            return partial(_answer, Conclusion(1, f"cannot start {request.size} processes: {error.strerror}"))
        if not isinstance(ranks, ForkedRanks):
            return ranks
        carry_out = partial(run_crew, request.command, request.size, request.folder, ranks, grace=request.grace)
    return partial(_carry_out, carry_out)


def main() -> None:
    """Run as a program."""
    watch_launcher()
    request = RunRequest.from_line(sys.stdin.buffer.readline())
    _stand_alone(request, os.dup(sys.stdout.fileno()))
    if request.virtual is not None:
        _carry_out(partial(_run_virtual, request, request.virtual))
    _carry_out(
        partial(_run_started, request) if request.hosts is None else partial(_run_on_hosts, request, request.hosts)
    )


def _carry_out(run: Callable[[], Conclusion]) -> NoReturn:
    try:
        ended = run()
    except (QuorateError, OSError) as error:
        ended = Conclusion(WRONG_INPUT if isinstance(error, ConfigurationError) else 1, str(error))
    _answer(ended)


def _answer(ended: Conclusion) -> NoReturn:
    """The last that this process does: python's own end takes longer than a short run."""
    flush_files()
    os.write(KEPT, conclusion_line(ended))
    os._exit(0)


def _stand_alone(request: RunRequest, answer: int) -> None:
    err = sys.stderr.fileno()
    if request.virtual is not None:
        err = os.open(request.folder / CONSOLE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    stand_alone(answer, os.open(os.devnull, os.O_WRONLY), err)


def _run_started(request: RunRequest) -> Conclusion:
    with StartedRanks(request.command, request.size, request.folder) as ranks:
        return run_crew(request.command, request.size, request.folder, ranks, grace=request.grace)


def _run_on_hosts(request: RunRequest, hosts: Hosts) -> Conclusion:
    with HostRanks(request.command, hosts, request.folder) as ranks:
        return run_crew(request.command, request.size, request.folder, ranks, grace=request.grace)


def _run_virtual(request: RunRequest, virtual: VirtualRun) -> Conclusion:
    from quorate.launch.virtual.run import INTERRUPTED

    with asked_in_one_process() as asked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        try:
            status = run_request(request, virtual)
        except KeyboardInterrupt:
            status = INTERRUPTED
    if asked and status:
        return Conclusion(status_after(asked[0]), f"ended by {asked[0].name}; every worker has ended")
    return Conclusion(status, None if status == 0 else _why(request.folder / CONSOLE))


def _why(console: Path) -> str:
    """The sentence in what was shown of the failure of a virtual run."""
    lines = console.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = [line.removeprefix("[rank ").partition("] ") for line in lines if line.startswith("[rank ")]
    if not shown:
        return lines[-1].removeprefix("quorate: ") if lines else "a worker left with a status above 0"
    rank = int(shown[0][0])
    raised = [text for of, _, text in shown if int(of) == rank][-1]
    return f"rank {rank} raised {raised}; its log is {log_of(console.parent, rank)}"


if __name__ == "__main__":
    main()
