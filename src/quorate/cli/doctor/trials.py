"""Trials: programs that are really started, with a time limit, and what is made of how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.launch.local.orphans import death_with_parent
from quorate.launch.local.verdict import status_in_words

PROGRAM = (sys.executable, "-m", "quorate.launch.worker.trial")
SECONDS = 90.0
"""Time limit of a trial in seconds; importing torch is most of it."""
OF_LAUNCHERS = (
    *("QUORATE_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_"),
    *("SLURM_", "OMPI_COMM_WORLD_", "PMI"),
)
"""Beginnings of the variables by which launchers tell a worker its place; programs that are tried have none."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The end of programs that were started together."""

    answers: Sequence[dict[str, Any]] = field(default_factory=list)
    """The last line of each program that printed one."""
    why: str | None = None
    """The last line of the first that failed; None: none did."""
    processes: int = 1


def probe_torch() -> Trial:
    """Import torch in a process of its own, and return its facts."""
    return tried([[*PROGRAM, "facts"]])


def probe_backend(backend: str, size: int) -> Trial:
    """Run an all-reduce among `size` processes, which meet at a file."""
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        store = os.path.join(folder, "store")
        if backend == "mpi":
            return tried([["mpirun", "-n", str(size), *PROGRAM, "reduce", "mpi", store, "0", str(size)]], folder)
        return tried([[*PROGRAM, "reduce", backend, store, str(rank), str(size)] for rank in range(size)], folder)


def probe_half() -> Trial:
    """Multiply matrices in bfloat16 on the CPU."""
    return tried([[*PROGRAM, "half"]])


def probe_run() -> Trial:
    """Run one step with two workers of `quorate run`."""
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        ended = tried([[sys.executable, "-m", "quorate.cli.main", "run", "-n", "2", *PROGRAM[1:], "train"]], folder)
    return Trial(answers=ended.answers, why=ended.why, processes=2)


def judge_gloo(trial: Trial) -> Finding:
    """Judge gloo, which all workers on CPUs use."""
    fix = "see the rows loopback and host name; else try GLOO_SOCKET_IFNAME=lo"
    return _judged("backend gloo", trial, fix)


def judge_nccl(trial: Trial | None, has_gpu: bool) -> Finding:
    """Judge NCCL, which GPUs use. `trial` is None if torch was built without it."""
    if not has_gpu:
        return ok("backend nccl", "not tried: it needs a GPU")
    if trial is None:
        return warn("backend nccl", "torch was built without it", "install a build of torch with NCCL")
    return _judged("backend nccl", trial, "set NCCL_DEBUG=INFO and see what it says; is the driver recent enough?")


def judge_mpi(trial: Trial | None, is_built: bool) -> Finding:
    """Judge MPI, which Quorate does not need; the builds of torch on PyPI have none."""
    if not is_built:
        return ok("backend mpi", "not in this build of torch, and not needed")
    if trial is None:
        return warn("backend mpi", "built into torch, but there is no mpirun", "install an MPI, if you want to use it")
    return _judged("backend mpi", trial, "try mpirun with a program of its own first", fails=False)


def judge_half(trial: Trial) -> Finding:
    """Judge bfloat16: virtual machines may announce instructions that they cannot execute."""
    name = "bfloat16"
    if trial.why is not None:
        fix = "before a training in bfloat16 on the CPU: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
        return warn(name, f"on the CPU: {trial.why}", fix)
    if not all(answer.get("right") for answer in trial.answers):
        return warn(name, "a product of matrices on the CPU is wrong", "do not train in bfloat16 on this CPU")
    return ok(name, "products of matrices are right on the CPU")


def judge_run(trial: Trial) -> Finding:
    """Judge a run from end to end: launcher, board, sockets, hooks, one step."""
    return _judged("quorate run", trial, "see the rows above; if all are well, tell us what it says")


def has_mpirun() -> bool:
    """Return whether an MPI is installed."""
    return shutil.which("mpirun") is not None


def _judged(name: str, trial: Trial, fix: str, *, fails: bool = True) -> Finding:
    bad = fail if fails else warn
    if trial.why is not None:
        return bad(name, trial.why, fix)
    if not trial.answers or not all(answer.get("right") for answer in trial.answers):
        return bad(name, "the processes met, but their sum was wrong", "do not train on this machine")
    number = "1 process" if trial.processes == 1 else f"{trial.processes} processes"
    seconds = max((answer.get("seconds", 0.0) for answer in trial.answers), default=0.0)
    return ok(name, f"{number} agreed" + (f" in {seconds * 1e3:.2g} ms" if seconds else ""))


def tried(commands: Sequence[Sequence[str]], folder: str | None = None, seconds: float = SECONDS) -> Trial:
    """Start all commands at once, in `folder`; kill those still running after `seconds`, with their children."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    environment = {**kept, "OMP_NUM_THREADS": "1"}
    deadline, tie = time.monotonic() + seconds, death_with_parent()
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as said:
        outputs = [(Path(said, f"{number}.out"), Path(said, f"{number}.err")) for number in range(len(commands))]
        running = []
        for words, (out, err) in zip(commands, outputs, strict=True):
            with open(out, "wb") as stdout, open(err, "wb") as stderr:
                running.append(
                    subprocess.Popen(
                        words,
                        cwd=folder,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        start_new_session=True,
                        preexec_fn=tie,
                    )
                )
        try:
            late = [process for process in running if not _ends(process, deadline)]
        finally:
            for process in running:
                _end(process)
        answers = [answer for out, _ in outputs if (answer := _answer(out)) is not None]
        whys = [_why(process, err) for process, (_, err) in zip(running, outputs, strict=True) if process not in late]
    if late:
        return Trial(answers=answers, why=f"no answer within {seconds:g} s", processes=len(commands))
    return Trial(answers=answers, why=next(filter(None, whys), None), processes=len(commands))


def _ends(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answer(path: Path) -> dict[str, Any] | None:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _why(process: subprocess.Popen[bytes], path: Path) -> str | None:
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"it {status_in_words(process.returncode)}"
