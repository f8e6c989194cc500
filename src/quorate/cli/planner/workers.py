"""Workers that run a script for a plan on this machine, and write their answers to files."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.launch.local.processes import Conclusion
from quorate.launch.local.verdict import last_lines, log_of
from quorate.launch.run.overrides import Overrides
from quorate.launch.run.requests import status_after
from quorate.planning.layouts import Layout

if TYPE_CHECKING:
    from quorate.launch.warm.run_server import RunServer
    from quorate.launch.warm.stepping import Task

_INTERRUPTED = (status_after(signal.SIGINT), status_after(signal.SIGTERM))


def answers(
    server: RunServer,
    program: str,
    task_in: Callable[[str], Task],
    script: str,
    arguments: Sequence[str],
    layout: Layout,
) -> list[Any] | str:
    """Return the answer of each worker of `program` in this layout, or one line about why there is none.

    Raises `KeyboardInterrupt` where this process was asked to end; then no worker is left.
    """
    from quorate.launch.warm.request import RunRequest
    from quorate.launch.warm.stepping import path_of

    with tempfile.TemporaryDirectory(prefix="quorate-plan-") as name:
        folder, task = Path(name), task_in(name)
        overrides = Overrides(
            strategy=layout.strategy or None, mesh=layout.mesh or None, zero=layout.zero or None,
            log="none",
        )  # fmt: skip
        request = RunRequest(
            script=program, arguments=[task.line(), script, *arguments], is_module=True, overrides=overrides,
            size=layout.workers, folder=folder,
        )  # fmt: skip
        run = server.start(request)
        try:
            ended = run.wait()
        except KeyboardInterrupt:
            run.send(signal.SIGTERM)
            run.wait(request.grace)
            raise
        assert ended is not None
        paths = [path_of(folder, rank) for rank in range(layout.workers)]
        if ended.status in _INTERRUPTED:
            raise KeyboardInterrupt
        if all(path.exists() for path in paths):
            return [json.loads(path.read_text()) for path in paths]
        return _why(ended, folder, script, task)


def _why(ended: Conclusion, folder: Path, script: str, task: Task) -> str:
    """Return why there is no answer, without the folder, which is deleted by then."""
    needed = task.warm_up + task.steps
    if ended.why is None:
        return f"{script} has ended before its optimizer.step() number {needed}"
    if "SIGALRM" in ended.why:
        return f"{script} has made fewer than {needed} steps within {task.limit:g} s"
    said = ended.why.partition("\n")[0].partition("; its log is ")[0].partition("; the logs are in ")[0]
    lines = last_lines(log_of(folder, 0), 1)
    return f"{said}: {lines[0].strip()}" if lines and "raised" not in said and "Error" not in said else said
