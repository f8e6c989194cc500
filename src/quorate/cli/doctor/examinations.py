"""The examinations of this machine, in order, and the facts that later ones need from earlier ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from quorate.cli.doctor import machine, network, software, trials
from quorate.cli.doctor.findings import Examination, Finding, fail

QUICK, SLOW = 10.0, trials.SECONDS + 10.0
"""Seconds for what ought to take milliseconds (a name server may take its time), and for a trial."""
_WITH_TORCH = ("gpu", "bfloat16", "backend gloo", "backend nccl", "backend mpi", "quorate run")


def quick() -> list[Examination[Any]]:
    """Return the examinations that start no training."""
    rows: dict[str, tuple[Callable[[], Any], Callable[[Any], Finding]]] = {
        "python": (software.probe_python, software.judge_python),
        "torch": (software.probe_packages, software.judge_torch),
        "packages": (software.probe_packages, software.judge_packages),
        "extras": (software.probe_extras, software.judge_extras),
        "cores": (machine.probe_cores, machine.judge_cores),
        "memory": (machine.probe_memory, machine.judge_memory),
        "/dev/shm": (machine.probe_shared_memory, machine.judge_shared_memory),
        "open files": (machine.probe_open_files, machine.judge_open_files),
        "folders": (machine.probe_folders, machine.judge_folders),
        "clocks": (machine.probe_clocks, machine.judge_clocks),
        "loopback": (network.probe_loopback, network.judge_loopback),
        "unix sockets": (network.probe_sockets, network.judge_sockets),
        "host name": (network.probe_name, network.judge_name),
        "torchrun": (network.probe_torchrun, network.judge_torchrun),
        "token": (network.probe_token, network.judge_token),
    }
    return [Examination(name=name, seconds=QUICK, probe=probe, judge=judge) for name, (probe, judge) in rows.items()]


def names() -> list[str]:
    """Return the names of all rows, in order."""
    return [*(examination.name for examination in quick()), *_WITH_TORCH]


def findings() -> Iterator[Finding]:
    """Yield each finding as soon as it is known. If torch cannot be imported, skip the rows that need it."""
    for examination in quick():
        yield examination.finding()
    torch_facts: list[dict[str, Any]] = []
    yield _slow("gpu", trials.probe_torch, partial(_judge_gpu, torch_facts=torch_facts))
    if not torch_facts:
        return
    gpus, has_mpi = len(torch_facts[0]["gpus"]), torch_facts[0]["mpi"]
    nccl = partial(trials.probe_backend, "nccl", min(2, gpus)) if gpus and torch_facts[0]["nccl"] else lambda: None
    mpi = partial(trials.probe_backend, "mpi", 2) if has_mpi and trials.has_mpirun() else lambda: None
    yield _slow("bfloat16", trials.probe_half, trials.judge_half)
    yield _slow("backend gloo", partial(trials.probe_backend, "gloo", 2), trials.judge_gloo)
    yield _slow("backend nccl", nccl, partial(trials.judge_nccl, has_gpu=gpus > 0))
    yield _slow("backend mpi", mpi, partial(trials.judge_mpi, is_built=has_mpi))
    yield _slow("quorate run", trials.probe_run, trials.judge_run)


def _slow(name: str, probe: Callable[[], Any], judge: Callable[[Any], Finding]) -> Finding:
    return Examination(name=name, seconds=SLOW, probe=probe, judge=judge).finding()


def _judge_gpu(trial: trials.Trial, torch_facts: list[dict[str, Any]]) -> Finding:
    if trial.why is not None or not trial.answers:
        return fail("gpu", f"torch cannot be imported: {trial.why}", "install torch anew")
    torch_facts.append(trial.answers[0])
    has_driver = shutil.which("nvidia-smi") is not None
    return software.judge_gpu(trial.answers[0]["gpus"], trial.answers[0]["build"], has_driver=has_driver)
