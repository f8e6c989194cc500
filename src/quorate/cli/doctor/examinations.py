"""What is looked at, in which order, and what one finding hands on to the next."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from quorate.cli.doctor import machine, network, software, trials
from quorate.cli.doctor.findings import Examination, Finding, fail

QUICK = 10.0
"""Seconds for what ought to take milliseconds; a name server may take its time."""
SLOW = trials.SECONDS + 10.0


def quick() -> list[Examination[Any]]:
    """What is looked at without starting a training."""
    return [
        Examination(name="python", seconds=QUICK, probe=software.probe_python, judge=software.judge_python),
        Examination(name="torch", seconds=QUICK, probe=software.probe_packages, judge=software.judge_torch),
        Examination(name="packages", seconds=QUICK, probe=software.probe_packages, judge=software.judge_packages),
        Examination(name="extras", seconds=QUICK, probe=software.probe_extras, judge=software.judge_extras),
        Examination(name="cores", seconds=QUICK, probe=machine.probe_cores, judge=machine.judge_cores),
        Examination(name="memory", seconds=QUICK, probe=machine.probe_memory, judge=machine.judge_memory),
        Examination(
            name="/dev/shm", seconds=QUICK, probe=machine.probe_shared_memory, judge=machine.judge_shared_memory
        ),
        Examination(name="open files", seconds=QUICK, probe=machine.probe_open_files, judge=machine.judge_open_files),
        Examination(name="folders", seconds=QUICK, probe=machine.probe_folders, judge=machine.judge_folders),
        Examination(name="clocks", seconds=QUICK, probe=machine.probe_clocks, judge=machine.judge_clocks),
        Examination(name="loopback", seconds=QUICK, probe=network.probe_loopback, judge=network.judge_loopback),
        Examination(name="unix sockets", seconds=QUICK, probe=network.probe_sockets, judge=network.judge_sockets),
        Examination(name="host name", seconds=QUICK, probe=network.probe_name, judge=network.judge_name),
        Examination(name="torchrun", seconds=QUICK, probe=network.probe_torchrun, judge=network.judge_torchrun),
        Examination(name="token", seconds=QUICK, probe=network.probe_token, judge=network.judge_token),
    ]


def names() -> list[str]:
    """Every row there will be, in order."""
    return [
        *(one.name for one in quick()),
        "gpu",
        "bfloat16",
        "backend gloo",
        "backend nccl",
        "backend mpi",
        "quorate run",
    ]


def findings() -> Iterator[Finding]:
    """All of them, each as soon as it is there. Where torch cannot be imported, nothing that needs it is tried."""
    for examination in quick():
        yield examination.finding()
    told: list[dict[str, Any]] = []
    yield Examination(
        name="gpu", seconds=SLOW, probe=trials.probe_torch, judge=partial(_judge_gpu, told=told)
    ).finding()
    if not told:
        return
    yield Examination(name="bfloat16", seconds=SLOW, probe=trials.probe_half, judge=trials.judge_half).finding()
    facts = told[0]
    gpus = len(facts["gpus"])
    yield Examination(
        name="backend gloo", seconds=SLOW, probe=partial(trials.probe_backend, "gloo", 2), judge=trials.judge_gloo
    ).finding()
    yield Examination(
        name="backend nccl",
        seconds=SLOW,
        probe=partial(trials.probe_backend, "nccl", min(2, gpus)) if gpus and facts["nccl"] else lambda: None,
        judge=partial(trials.judge_nccl, has_gpu=gpus > 0),
    ).finding()
    yield Examination(
        name="backend mpi",
        seconds=SLOW,
        probe=partial(trials.probe_backend, "mpi", 2) if facts["mpi"] and trials.has_mpirun() else lambda: None,
        judge=partial(trials.judge_mpi, is_built=facts["mpi"]),
    ).finding()
    yield Examination(name="quorate run", seconds=SLOW, probe=trials.probe_run, judge=trials.judge_run).finding()


def _judge_gpu(trial: trials.Trial, told: list[dict[str, Any]]) -> Finding:
    if trial.why is not None or not trial.answers:
        return fail("gpu", f"torch cannot be imported: {trial.why}", "install torch anew")
    facts = trial.answers[0]
    told.append(facts)
    return software.judge_gpu(
        software.GpuFacts(names=facts["gpus"], build=facts["build"], has_driver=software.has_driver())
    )
