"""Words of torchrun, accelerate, mpirun and horovodrun: those that mean `-n`, and an answer to others."""

from __future__ import annotations

from typing import Any

_WORKERS = ("--nproc", "--nproc-per-node", "--num-processes", "--num-proc", "--num-gpus", "--gpus", "--nprocs")
WORKERS = tuple(dict.fromkeys(word for flag in _WORKERS for word in (flag, f"--{flag[2:].replace('-', '_')}")))
"""Other names of `--workers`, in both spellings."""
WORKERS += ("-np",)

_FLAGS_BY_ANSWER = {
    "--hosts first:4,second:4 starts workers on several hosts": (
        "--nnodes --node-rank --num-machines --machine-rank --main-process-ip --hostfile --host --rdzv-endpoint "
        "--rdzv-backend --rdzv-id --master-addr --master-port -H"
    ),
    "workers run on this machine unless --hosts is given; leave --standalone out": "--standalone",
    "--restart N replaces dead workers": "--max-restarts",
    "the script chooses its precision, with torch.autocast": "--mixed-precision",
    "-n N starts N workers, each with a GPU of its own if there are as many": "--multi-gpu",
    "quorate trace RUN writes the timeline of a run": "--timeline-filename --timeline-mark-cycles",
    "--set part_bytes=N is the size of a part of the gradients": "--fusion-threshold-mb",
    "a part of the gradients is sent when it is complete; leave it out": "--cycle-time-ms",
    "workers do not negotiate which tensors are ready; leave it out": "--cache-capacity --disable-cache",
    "--set autotune=true tunes how gradients are sent, and quorate tune does so before a run": (
        "--autotune --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample "
        "--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise"
    ),
    "hosts add up their own workers' gradients first; leave it out": (
        "--hierarchical-allreduce --hierarchical-allgather"
    ),
    "--restart N replaces dead workers, under a strategy that outlives deaths": (
        "--min-np --min-num-proc --reset-limit --blacklist-cooldown-range --elastic-timeout"
    ),
    "--max-joins N and quorate join RUN add workers to a run": (
        "--max-np --max-num-proc --host-discovery-script --slots-per-host"
    ),
    "the transport is chosen by the hosts and devices; leave it out": (
        "--gloo --mpi --jsrun --tcp --mpi-args --mpi-threads-disable --num-nccl-streams --network-interface "
        "--network-interfaces"
    ),
    '--ssh "ssh -p 2222 -i FILE" reaches the hosts': "--ssh-port --ssh-identity-file -p",
    "quorate.join(timeout=SECONDS) in the script limits all waits": (
        "--start-timeout --gloo-timeout-seconds --stall-check-shutdown-time-seconds"
    ),
    "a wait of a minute is reported by itself; leave it out": "--stall-check --stall-check-warning-time-seconds",
    "the output of each worker is in runs/NAME; --name NAME chooses the folder": "--output-filename",
    "quorate watch RUN and quorate report RUN show what a run does": (
        "--verbose --log-level --log-with-timestamp --log-hide-timestamp"
    ),
    "--config FILE reads options": "--config-file",
    "quorate doctor shows what can run here": "--check-build",
}
_ANSWERS = {flag: answer for answer, flags in _FLAGS_BY_ANSWER.items() for flag in flags.split()}
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
