"""Which backend torch's default process group has."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from quorate.core.errors import ConfigurationError, unknown
from quorate.wire.real.gpus import GPU_BACKENDS, NCCL

BACKENDS = ("gloo", "mpi")


def gpu_backend_here() -> str:
    """By QUORATE_GPU_BACKEND how tensors of GPUs are summed: "nccl", "host", or "" where workers are to find out.

    Raises `ConfigurationError` for any other.
    """
    chosen = os.environ.get("QUORATE_GPU_BACKEND", "").strip()
    if chosen and chosen not in GPU_BACKENDS:
        raise unknown("backend (QUORATE_GPU_BACKEND)", chosen, GPU_BACKENDS)
    return chosen


def backend_here(gpus: str = NCCL) -> str:
    """Return torch's backend: for CPU tensors that of QUORATE_BACKEND, by default gloo; for GPU tensors NCCL, or with
    `gpus="host"` gloo. Raises `ConfigurationError` for an unknown one, and for MPI outside of mpirun, or where torch
    has been built without it, as in all downloads."""
    chosen = os.environ.get("QUORATE_BACKEND", "").strip() or "gloo"
    if chosen not in BACKENDS:
        raise unknown("backend (QUORATE_BACKEND)", chosen, BACKENDS)
    if chosen == "mpi":
        if not dist.is_mpi_available():
            raise ConfigurationError(
                f"QUORATE_BACKEND=mpi, and torch {torch.__version__} has been built without MPI; build torch from "
                "source where an MPI is installed, or leave the variable out: gloo works under mpirun too"
            )
        if "OMPI_COMM_WORLD_RANK" not in os.environ and "PMI_RANK" not in os.environ:
            raise ConfigurationError("QUORATE_BACKEND=mpi works under mpirun only; start the workers with mpirun")
    return f"cpu:{chosen},cuda:{'nccl' if gpus == NCCL else 'gloo'}" if torch.cuda.is_available() else chosen
