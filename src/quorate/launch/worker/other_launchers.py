"""The place that srun or mpirun has given this process, said in the variables that torchrun sets.

| launcher | rank, size | rank on its host, and how many there | what all processes of a run have in common |
|---|---|---|---|
| Open MPI: mpirun | OMPI_COMM_WORLD_RANK, _SIZE | OMPI_COMM_WORLD_LOCAL_RANK, _LOCAL_SIZE | PMIX_NAMESPACE and others |
| srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID; SLURM_STEP_NUM_NODES | SLURM_JOB_ID, SLURM_STEP_ID |
| MPICH, Intel: mpiexec | PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS | PMI_PORT and others |

The first that applies is taken: mpirun may start its processes by srun. In the shell of sbatch and salloc there are
variables of Slurm too, and no step with several tasks: such a process is alone.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError

_RESERVED_STEPS = 4_294_967_280
"""From here on numbers of steps stand for shells: of sbatch, of salloc, of a prolog."""
_FIRST_PORT, _PORTS = 20_000, 10_000


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One process of `size`, all started by `launcher`."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    """How many there are on this host; None where that is not known, or not the same on every host."""
    is_one_host: bool
    job: str
    """Text that all processes of this run find, and those of no other run at the same time."""
    first_host: str | None = None
    """Where rank 0 is, as far as the launcher says."""

    def environment(self, known: Mapping[str, str]) -> dict[str, str]:
        """What torchrun would have said. Raises `ConfigurationError` where nobody knows where to meet."""
        told = {"RANK": str(self.rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(self.local_rank)}
        if self.local_size is not None:
            told["LOCAL_WORLD_SIZE"] = str(self.local_size)
        if not self.is_one_host:
            address = known.get("MASTER_ADDR") or self.first_host
            if not address:
                raise ConfigurationError(
                    f"{self.launcher} has started {self.size} workers, not all on this host, and does not say where "
                    "rank 0 is; set MASTER_ADDR to the address of its host for all of them"
                )
            told["MASTER_ADDR"] = address
            told["MASTER_PORT"] = known.get("MASTER_PORT") or str(_FIRST_PORT + zlib.crc32(self.job.encode()) % _PORTS)
        return told


def seat_here() -> Seat | None:
    """The seat of this process; None where no such launcher has started it, or it is the only one.

    Raises `ConfigurationError` where one has, and a variable is missing or no number.
    """
    known = os.environ
    if known.get("RANK") or known.get("WORLD_SIZE"):  # torchrun, or `quorate run`: the nearer launcher goes first
        return None
    if "OMPI_COMM_WORLD_RANK" in known or "OMPI_COMM_WORLD_SIZE" in known:
        seat = _open_mpi(known)
    elif _is_step(known):
        seat = _slurm(known)
    elif "PMI_RANK" in known or "PMI_SIZE" in known:
        seat = _pmi(known)
    elif "PMIX_RANK" in known and "SLURM_JOB_ID" not in known:
        raise ConfigurationError(
            "PMIX_RANK says that a launcher has started this process, and nothing says how many there are; set RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    else:
        return None
    if seat.rank >= seat.size:
        raise ConfigurationError(
            f"{seat.launcher} says that this is rank {seat.rank} of {seat.size}; ranks are from 0 on"
        )
    return None if seat.size == 1 else seat


def _open_mpi(known: Mapping[str, str]) -> Seat:
    launcher, prefix = "mpirun", "OMPI_COMM_WORLD_"
    size = _number(known, f"{prefix}SIZE", launcher)
    local_size = _number(known, f"{prefix}LOCAL_SIZE", launcher)
    return Seat(
        launcher=launcher,
        rank=_number(known, f"{prefix}RANK", launcher),
        size=size,
        local_rank=_number(known, f"{prefix}LOCAL_RANK", launcher),
        local_size=local_size,
        is_one_host=local_size == size,
        job=_job(known, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
    )


def _is_step(known: Mapping[str, str]) -> bool:
    """Whether srun has started this process as one task of a step."""
    step = known.get("SLURM_STEP_ID", known.get("SLURM_STEPID", ""))
    return step.isdecimal() and int(step) < _RESERVED_STEPS


def _slurm(known: Mapping[str, str]) -> Seat:
    launcher = "srun"
    counts = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS") if name in known]
    size = _number(known, counts[0] if counts else "SLURM_NTASKS", launcher)
    nodes = known.get("SLURM_STEP_NUM_NODES") or known.get("SLURM_NNODES") or known.get("SLURM_JOB_NUM_NODES")
    listed = known.get("SLURM_STEP_NODELIST") or known.get("SLURM_NODELIST") or known.get("SLURM_JOB_NODELIST")
    first = None if listed is None else first_host(listed)
    is_one_host = nodes == "1" or (nodes is None and listed == first)
    return Seat(
        launcher=launcher,
        rank=_number(known, "SLURM_PROCID", launcher),
        size=size,
        local_rank=_number(known, "SLURM_LOCALID", launcher),
        local_size=size if is_one_host else None,
        is_one_host=is_one_host,
        job=_job(known, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID", together=True),
        first_host=first,
    )


def _pmi(known: Mapping[str, str]) -> Seat:
    launcher = "mpiexec"
    size = _number(known, "PMI_SIZE", launcher)
    local_size = _number(known, "MPI_LOCALNRANKS", launcher) if size > 1 else 1
    return Seat(
        launcher=launcher,
        rank=_number(known, "PMI_RANK", launcher),
        size=size,
        local_rank=_number(known, "MPI_LOCALRANKID", launcher) if size > 1 else 0,
        local_size=local_size,
        is_one_host=local_size == size,
        job=_job(known, "PMI_JOBID", "PMI_PORT", "PMI_KVSNAME"),
    )


def first_host(listed: str) -> str:
    """The first name in a list as Slurm writes it: of `node[01-03,07],login` it is `node01`."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", listed)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", name[0] if name else listed)


def _job(known: Mapping[str, str], *names: str, together: bool = False) -> str:
    """What the first of these variables that is there says, or all of them; else the session that all are in.

    Where each is in a session of its own, the process that has started all.
    """
    found = [known[name] for name in names if known.get(name)]
    if not found:
        session = os.getsid(0)
        return f"started by {os.getppid()}" if session == os.getpid() else f"in session {session}"
    return " ".join(found) if together else found[0]


def _number(known: Mapping[str, str], name: str, launcher: str) -> int:
    value = known.get(name)
    if value is None:
        raise ConfigurationError(
            f"{launcher} has started this process, and {name} is not set; it is needed to find the other workers"
        )
    if not (value.isdecimal() and len(value) < 10):
        raise ConfigurationError(f"{name}={value} is no rank or size; {launcher} sets a whole number")
    return int(value)
