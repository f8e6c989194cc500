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
}  # fmt: skip


def answer_to(flag: str, flags: set[str]) -> str | None:
    """Return what stands for an option of another launcher in a verb with these `flags`; None for other words."""
    answer = _ANSWERS.get(flag if flag.count("-") == 1 else f"--{flag[2:].replace('_', '-')}")
    return answer if answer is not None and "--hosts" in flags else None


def flags_of_command(command: Any) -> set[str]:
    """Return every flag that the help of a command shows."""
    options = (option for option in command.params if option.param_type_name == "option")
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
