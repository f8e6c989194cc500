"""Which backend torch's default process group has."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from quorate.core.errors import ConfigurationError, unknown

BACKENDS = ("gloo", "mpi")


def backend_here() -> str:
    """As torch takes it: by QUORATE_BACKEND for tensors of the CPU, by default gloo, and NCCL for those of GPUs.

    Raises `ConfigurationError` for an unknown one, for MPI where torch has been built without it, which is so of all
    that is offered for download, and outside of mpirun.
    """
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
    return f"cpu:{chosen},cuda:nccl" if torch.cuda.is_available() else chosen
