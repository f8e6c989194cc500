"""Trials: programs that are really started, with a time limit, and what is made of how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.errors import QuorateError
from quorate.launch.local.orphans import death_with_parent
from quorate.launch.local.verdict import status_in_words

PROGRAM = (sys.executable, "-m", "quorate.launch.worker.trial")
SECONDS = 90.0
"""Time limit of a trial in seconds; importing torch is most of it."""
_OF_LAUNCHERS = (
    *("QUORATE_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_"),
    *("SLURM_", "OMPI_COMM_WORLD_", "PMI"),
)
"""Beginnings of the variables by which launchers tell a worker its place; programs that are tried have none."""


def environment_of_trials() -> dict[str, str]:
    """Return this process's environment without what launchers set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}


def environment() -> dict[str, Any]:
    """Return what torch says of itself and the machine, by a process that imports it. Raises `QuorateError`."""
    return tried([[*PROGRAM, "facts"]])[0]


def bfloat16() -> Finding:
    """Multiply matrices in bfloat16 on the CPU: virtual machines may announce instructions that they lack."""
    try:
        is_right = tried([[*PROGRAM, "half"]])[0]["right"]
    except QuorateError as error:
        return warn(f"on the CPU: {error}", "for bfloat16 on the CPU: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16")
    wrong = warn("a product of matrices on the CPU is wrong", "do not train in bfloat16 on this CPU")
    return ok("products of matrices are right on the CPU") if is_right else wrong


def backend(name: str, size: int, fix: str) -> Finding:
    """Run an all-reduce over a backend among `size` processes, which meet at a file."""
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        words = [*PROGRAM, "reduce", name, os.path.join(folder, "store")]
        return _agreed([[*words, str(rank), str(size)] for rank in range(size)], size, fix)


def quorate_run() -> Finding:
    """Run one step with two workers of `quorate run`: launcher, board, sockets, hooks."""
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        words = [sys.executable, "-m", "quorate.cli.main", "run", "-n", "2", *PROGRAM[1:], "train"]
        return _agreed([words], 2, "see the rows above; is TMPDIR a local folder?", folder)


def _agreed(commands: Sequence[Sequence[str]], size: int, fix: str, folder: str | None = None) -> Finding:
    try:
        answers = tried(commands, folder)
    except QuorateError as error:
        return fail(str(error), fix)
    if not all(answer["right"] for answer in answers):
        return fail("the processes met, but their sum was wrong", "do not train on this machine")
    seconds = max(answer.get("seconds", 0.0) for answer in answers)
    number = "1 process" if size == 1 else f"{size} processes"
    return ok(f"{number} agreed" + (f" in {seconds * 1e3:.2g} ms" if seconds else ""))


def tried(
    commands: Sequence[Sequence[str]], folder: str | None = None, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """Start all commands at once, in `folder`; return the last line of each, a JSON object.

    Raises `QuorateError` with the last words of one that fails, and after `seconds`; then all are killed, with their
    children.
    """
    deadline, tie = time.monotonic() + seconds, death_with_parent()
    with contextlib.ExitStack() as stack:
        running = []
        for words in commands:
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            process = subprocess.Popen(
                words, cwd=folder, env={**environment_of_trials(), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, preexec_fn=tie,
            )  # fmt: skip
            stack.callback(_end, process)
            running.append((process, out, err))
        try:
            statuses = [process.wait(max(0.0, deadline - time.monotonic())) for process, _, _ in running]
        except subprocess.TimeoutExpired:
            raise QuorateError(f"no answer within {seconds:g} s") from None
        for status, (_, _, err) in zip(statuses, running, strict=True):
            if status != 0:
                raise QuorateError(_last_line(err)[:300] or f"it {status_in_words(status)}")
        return [_answer(out) for _, out, _ in running]


def _answer(out: IO[bytes]) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        answer = json.loads(_last_line(out))
        if isinstance(answer, dict):
            return answer
    raise QuorateError("it ended without an answer")


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip().rpartition("\n")[2].strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
