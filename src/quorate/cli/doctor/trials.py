"""Trials: programs that are really started, with a time limit, and what is made of how they ended."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.errors import QuorateError
from quorate.launch.local.children import Command
from quorate.launch.local.verdict import status_in_words
from quorate.launch.warm.alone import Streams, run_alone
from quorate.report.live.display import repeated

PROGRAM = "quorate.launch.worker.trial"
SECONDS = 300.0
"""Time limit of a trial; importing torch is most of it, or measuring a slow network."""
_EVERY = 0.2
"""Seconds."""


def bfloat16() -> Finding:
    """Multiply matrices in bfloat16 on the CPU: virtual machines may announce instructions that they lack."""
    try:
        if tried(PROGRAM, "half")["right"]:
            return ok("products of matrices are right on the CPU")
    except QuorateError as error:
        return warn(f"on the CPU: {error}", "for bfloat16 on the CPU: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16")
    return warn("a product of matrices on the CPU is wrong", "do not train in bfloat16 on this CPU")


def quorate_run(workers: Sequence[str], rates: list[dict[str, Any]] | None = None) -> Finding:
    """Run one step with the `workers` (`-n 2`) of `quorate run`: launcher, board, sockets, gloo or NCCL, hooks.

    Appends the measured bandwidth of their sums to `rates`, if it is given.
    """
    try:
        with in_run(workers) as words:
            answer = tried(*words, PROGRAM, "train" if rates is None else "measure")
    except QuorateError as error:
        return fail(str(error), "see the rows above; is TMPDIR a local folder? NCCL_DEBUG=INFO says more about GPUs")
    if not answer["right"]:
        return fail("the workers met, but their mean was wrong", "do not train on this machine")
    if rates is not None:
        rates += answer["rates"]
    return ok(f"{answer['workers']} workers agreed on {answer['device']}")


@contextmanager
def in_run(workers: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of `quorate run` up to the module, in a new folder, or for hosts in this one; leave nothing."""
    name = f"doctor-{os.getpid()}"
    with ExitStack() as stack:
        if "--hosts" not in workers:
            stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-doctor-"))))
        try:
            yield ["quorate.cli.main", "run", *workers, "--name", name, "-m"]
        finally:
            shutil.rmtree(Path("runs", name), ignore_errors=True)
            with suppress(OSError):  # it has other runs, or was not made
                Path("runs").rmdir()


def tried(module: str, *arguments: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Run a module in the present folder; return its last line, a JSON object.

    Raises `QuorateError` with the last words of one that fails, and after `seconds`, when it is killed.
    """
    return objects_of(module, *arguments, seconds=seconds)[-1]


def objects_of(
    module: str, *arguments: str, seconds: float = SECONDS, counts: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Run a module in the present folder; return the JSON objects that it prints, a line each: one at least.

    `counts` is called by another thread with the number of lines so far, several times a second. Raises as `tried`.
    """
    command, threads = Command(script=module, is_module=True, arguments=arguments), os.environ.get("OMP_NUM_THREADS")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = Streams(out.fileno(), err.fileno())
        with ExitStack() as stack:
            if counts is not None:
                stack.enter_context(repeated(lambda: counts(_lines_in(out.fileno())), _EVERY))()
            status = run_alone(command, streams, seconds, OMP_NUM_THREADS=threads or "1")
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace").strip())
    if status is None:
        raise QuorateError(f"no answer within {seconds:g} s")
    if status != 0:
        raise QuorateError(texts[1].rpartition("\n")[2].strip()[:300] or f"it {status_in_words(status)}")
    try:
        objects = [dict(json.loads(line)) for line in texts[0].splitlines() if line.startswith("{")]
    except ValueError:
        objects = []
    if not objects:
        raise QuorateError("it ended without an answer")
    return objects


def _lines_in(file: int) -> int:
    return os.pread(file, os.fstat(file).st_size, 0).count(b"\n")
