"""Words of torchrun, accelerate, mpirun and horovodrun: those that mean `-n`, and an answer to others."""

from __future__ import annotations

from typing import Any

_WORKERS = ("--nproc", "--nproc-per-node", "--num-processes", "--num-proc", "--num-gpus", "--gpus", "--nprocs")
WORKERS = tuple(dict.fromkeys(word for flag in _WORKERS for word in (flag, f"--{flag[2:].replace('-', '_')}")))
"""Other names of `--workers`, in both spellings."""
WORKERS += ("-np",)

_ON_HOSTS = "--hosts first:4,second:4 starts workers on several hosts"
_ANSWERS = {
    **dict.fromkeys(
        (
            "--nnodes", "--node-rank", "--num-machines", "--machine-rank", "--main-process-ip", "--hostfile", "--host",
            "--rdzv-endpoint", "--rdzv-backend", "--rdzv-id", "--master-addr", "--master-port", "-H",
        ),
        _ON_HOSTS,
    ),
    "--standalone": "workers run on this machine unless --hosts is given; leave --standalone out",
    "--max-restarts": "--restart N replaces dead workers",
    "--mixed-precision": "the script chooses its precision, with torch.autocast",
    "--multi-gpu": "-n N starts N workers, each with a GPU of its own if there are as many",
    **dict.fromkeys(
        ("--timeline-filename", "--timeline-mark-cycles"), "quorate trace RUN writes the timeline of a run"
    ),
    "--fusion-threshold-mb": "--set part_bytes=N is the size of a part of the gradients",
    "--cycle-time-ms": "a part of the gradients is sent when it is complete; leave it out",
    **dict.fromkeys(
        ("--cache-capacity", "--disable-cache"), "workers do not negotiate which tensors are ready; leave it out"
    ),
    **dict.fromkeys(
        (
            "--autotune", "--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample",
            "--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise",
        ),
        "--set autotune=true tunes how gradients are sent, and quorate tune does so before a run",
    ),
    **dict.fromkeys(
        ("--hierarchical-allreduce", "--hierarchical-allgather"),
        "hosts add up their own workers' gradients first; leave it out",
    ),
    **dict.fromkeys(
        ("--min-np", "--min-num-proc", "--reset-limit", "--blacklist-cooldown-range", "--elastic-timeout"),
        "--restart N replaces dead workers, under a strategy that outlives deaths",
    ),
    **dict.fromkeys(
        ("--max-np", "--max-num-proc", "--host-discovery-script", "--slots-per-host"),
        "--max-joins N and quorate join RUN add workers to a run",
    ),
    **dict.fromkeys(
        (
            "--gloo", "--mpi", "--jsrun", "--tcp", "--mpi-args", "--mpi-threads-disable", "--num-nccl-streams",
            "--network-interface", "--network-interfaces",
        ),
        "the transport is chosen by the hosts and devices; leave it out",
    ),
    **dict.fromkeys(("--ssh-port", "--ssh-identity-file", "-p"), '--ssh "ssh -p 2222 -i FILE" reaches the hosts'),
    **dict.fromkeys(
        ("--start-timeout", "--gloo-timeout-seconds", "--stall-check-shutdown-time-seconds"),
        "quorate.join(timeout=SECONDS) in the script limits all waits",
    ),
    **dict.fromkeys(
        ("--stall-check", "--stall-check-warning-time-seconds"),
        "a wait of a minute is reported by itself; leave it out",
    ),
    "--output-filename": "the output of each worker is in runs/NAME; --name NAME chooses the folder",
    **dict.fromkeys(
        ("--verbose", "--log-level", "--log-with-timestamp", "--log-hide-timestamp"),
        "quorate watch RUN and quorate report RUN show what a run does",
    ),
    "--config-file": "--config FILE reads options",
    "--check-build": "quorate doctor shows what can run here",
}  # fmt: skip


_OF_A_NETWORK = ("--latency", "--bandwidth")
"""Two options of other verbs of ours that are one in `quorate simulate`."""


def answer_to(flag: str, flags: set[str]) -> str | None:
    """Return what stands for an option of another launcher or verb in a verb with these `flags`; None for others."""
    word = flag if flag.startswith("-") and not flag.startswith("--") else f"--{flag[2:].replace('_', '-')}"
    if word in _OF_A_NETWORK and "--network" in flags:
        return "--network 50us:10Gbit is both"
    answer = _ANSWERS.get(word) or _ANSWERS.get(word.replace("--no-", "--", 1))
    return answer if answer is not None and "--hosts" in flags else None


def flags_of_command(command: Any) -> set[str]:
    """Return every flag that the help of a command shows."""
    options = (option for option in command.params if option.param_type_name == "option")
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
