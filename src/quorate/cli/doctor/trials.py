"""Trials: programs that are really started, with a time limit, and what is made of how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

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
    return tried([*PROGRAM, "facts"])


def bfloat16() -> Finding:
    """Multiply matrices in bfloat16 on the CPU: virtual machines may announce instructions that they lack."""
    try:
        is_right = tried([*PROGRAM, "half"])["right"]
    except QuorateError as error:
        return warn(f"on the CPU: {error}", "for bfloat16 on the CPU: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16")
    wrong = warn("a product of matrices on the CPU is wrong", "do not train in bfloat16 on this CPU")
    return ok("products of matrices are right on the CPU") if is_right else wrong


def quorate_run() -> Finding:
    """Run one step with two workers of `quorate run`: launcher, board, sockets, gloo or NCCL, hooks."""
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        words = [sys.executable, "-m", "quorate.cli.main", "run", "-n", "2", *PROGRAM[1:], "train"]
        try:
            answer = tried(words, folder)
        except QuorateError as error:
            fix = "see the row ports; is TMPDIR a local folder? GLOO_SOCKET_IFNAME=lo; NCCL_DEBUG=INFO"
            return fail(str(error), fix)
    if not answer["right"]:
        return fail("the workers met, but their mean was wrong", "do not train on this machine")
    return ok(f"2 workers agreed on {answer['device']}")


def tried(words: Sequence[str], folder: str | None = None, seconds: float = SECONDS) -> dict[str, Any]:
    """Run a program in `folder`; return its last line, a JSON object.

    Raises `QuorateError` with the last words of one that fails, and after `seconds`; then it is killed, with all that
    it has started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            words, cwd=folder, env={**environment_of_trials(), "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
            stdout=out, stderr=err, start_new_session=True, preexec_fn=death_with_parent(),
        )  # fmt: skip
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise QuorateError(f"no answer within {seconds:g} s") from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        last_lines = []
        for file in (out, err):
            file.seek(0)
            last_lines.append(file.read().decode(errors="replace").strip().rpartition("\n")[2].strip())
    if status != 0:
        raise QuorateError(last_lines[1][:300] or f"it {status_in_words(status)}")
    with contextlib.suppress(ValueError):
        answer: dict[str, Any] = json.loads(last_lines[0])
        return answer
    raise QuorateError("it ended without an answer")
