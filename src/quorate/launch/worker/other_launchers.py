"""The place that srun or mpirun has given this process, said in the variables that torchrun sets.

| launcher | rank, size | rank on its host, and how many there | what all processes of a run have in common |
|---|---|---|---|
| Open MPI: mpirun | OMPI_COMM_WORLD_RANK, _SIZE | OMPI_COMM_WORLD_LOCAL_RANK, _LOCAL_SIZE | PMIX_NAMESPACE and others |
| srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID; SLURM_STEP_NUM_NODES | SLURM_JOB_ID, SLURM_STEP_ID |
| MPICH, Intel: mpiexec | PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS | PMI_PORT and others |

The first that applies is taken: mpirun may start its processes by srun. In the shell of sbatch and salloc there are
variables of Slurm too, and no step with several tasks: such a process is alone.

Between hosts rank 0 is on the first host of the step (srun). With mpirun, rank 0 is on the host where mpirun itself
runs: Open MPI gives that host's addresses (4: OMPI_MCA_orte_hnp_uri) or its name (5: in PMIX_NAMESPACE). MASTER_ADDR
goes first. Workers of one host whose launcher offers no board meet at one that rank 0 serves on a Unix socket.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.wire.board import SocketBoard
from quorate.wire.board_server import BoardServer
from quorate.wire.socket_folder import find_socket_folder, make_socket_folder

_RESERVED_STEPS = 4_294_967_280
"""From here on numbers of steps stand for shells: of sbatch, of salloc, of a prolog."""
_FIRST_PORT, _PORTS = 20_000, 10_000
_USUAL_PORT = 29_500
"""That of torchrun; for launchers whose jobs have no name that is known on every host."""

_LOOK_EVERY = 0.1
_ANSWERS_WITHIN = 2.0
"""Seconds; the default limit for a host that drops packets is much longer."""

_BOARD, _OPEN = "board", "open"
_MEETING_LOOK_EVERY = 0.02


@dataclass(frozen=True, kw_only=True)
class LaunchedRank:
    """One process of `size`, all started by `launcher`."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    """How many there are on this host; None where that is not known, or not the same on every host."""
    is_one_host: bool
    job: str
    """Text that all processes of this run on this host find, and those of no other run at the same time."""
    is_job_everywhere: bool = True
    """Whether those on other hosts find it too."""
    first_host: str | None = None
    """The host of rank 0, as far as the launcher says."""
    launched_from: tuple[str, ...] = ()
    """Addresses or names of the host that the launcher itself runs on, where rank 0 mostly is."""

    def environment(self, known: Mapping[str, str], timeout: float) -> dict[str, str]:
        """Return the variables of torchrun; looks for rank 0 for `timeout` seconds where it has several addresses.

        Raises `ConfigurationError` where nobody knows where to meet, and `WireTimeout` where rank 0 is not found.
        """
        variables = {"RANK": str(self.rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(self.local_rank)}
        if self.local_size is not None:
            variables["LOCAL_WORLD_SIZE"] = str(self.local_size)
        if not self.is_one_host:
            port = known.get("MASTER_PORT") or (self._port_of_job if self.is_job_everywhere else str(_USUAL_PORT))
            address = known.get("MASTER_ADDR") or self.first_host
            if not address and self.launched_from:
                address = address_of_first(
                    self.launched_from, port, launcher=self.launcher, is_first=self.rank == 0, timeout=timeout
                )
            if not address:
                raise ConfigurationError(
                    f"{self.launcher} has started {self.size} workers, not all on this host, and does not say where "
                    "rank 0 is; set MASTER_ADDR to the address of its host for all of them"
                )
            variables["MASTER_ADDR"] = address
            variables["MASTER_PORT"] = port
        return variables

    def environment_for_torch(self, known: Mapping[str, str], timeout: float) -> dict[str, str]:
        """Return these variables, and on one host where `init_process_group` of a script is to meet the others."""
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port_of_job} if self.is_one_host else {}
        return {name: known.get(name) or x for name, x in here.items()} | self.environment(known, timeout)

    @property
    def _port_of_job(self) -> str:
        return str(_FIRST_PORT + zlib.crc32(self.job.encode()) % _PORTS)


def launched_rank() -> LaunchedRank | None:
    """Return the rank that a launcher gave this process; None where no such launcher has started it, or it is the only
    one.

    Raises `ConfigurationError` where one has, and a variable is missing or no number.
    """
    known = os.environ
    if known.get("RANK") or known.get("WORLD_SIZE"):  # torchrun, or `quorate run`: the nearer launcher goes first
        return None
    if "OMPI_COMM_WORLD_RANK" in known or "OMPI_COMM_WORLD_SIZE" in known:
        launched = _open_mpi(known)
    elif _is_step(known):
        launched = _slurm(known)
    elif "PMI_RANK" in known or "PMI_SIZE" in known:
        launched = _pmi(known)
    elif "PMIX_RANK" in known and "SLURM_JOB_ID" not in known:
        raise ConfigurationError(
            "PMIX_RANK says that a launcher has started this process, and nothing says how many there are; set RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    else:
        return None
    if launched.rank >= launched.size:
        raise ConfigurationError(
            f"{launched.launcher} says that this is rank {launched.rank} of {launched.size}; ranks are from 0 on"
        )
    return None if launched.size == 1 else launched


def _open_mpi(known: Mapping[str, str]) -> LaunchedRank:
    launcher, prefix = "mpirun", "OMPI_COMM_WORLD_"
    size = _number(known, f"{prefix}SIZE", launcher)
    local_size = _number(known, f"{prefix}LOCAL_SIZE", launcher)
    return LaunchedRank(
        launcher=launcher,
        rank=_number(known, f"{prefix}RANK", launcher),
        size=size,
        local_rank=_number(known, f"{prefix}LOCAL_RANK", launcher),
        local_size=local_size,
        is_one_host=local_size == size,
        job=_job(known, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
        launched_from=_host_of_mpirun(known),
    )


def _host_of_mpirun(known: Mapping[str, str]) -> tuple[str, ...]:
    """`1.0;tcp://10.0.0.1,10.9.0.1:4711;tcp6://[fd00::1]:4712` holds addresses, `prterun-node07-4711@1` a name."""
    listed = re.search(r"tcp://([^:;]+):", known.get("OMPI_MCA_orte_hnp_uri", ""))
    if listed is not None:
        return tuple(listed[1].split(","))
    named = re.fullmatch(r"prte(?:run)?-(.+)-\d+@\d+", known.get("PMIX_NAMESPACE", ""))
    return () if named is None else (named[1],)


def _is_step(known: Mapping[str, str]) -> bool:
    """Whether srun has started this process as one task of a step."""
    step = known.get("SLURM_STEP_ID", known.get("SLURM_STEPID", ""))
    return step.isdecimal() and int(step) < _RESERVED_STEPS


def name_under_slurm() -> str | None:
    """A name for the run of this step of a job, the same when the job is requeued: `slurm-77.0`; None elsewhere."""
    known = os.environ
    if not (_is_step(known) and known.get("SLURM_JOB_ID", "").isdecimal()):
        return None
    return f"slurm-{known['SLURM_JOB_ID']}.{known.get('SLURM_STEP_ID', known.get('SLURM_STEPID'))}"


def is_requeued() -> bool:
    """Whether Slurm has restarted this job."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return count.isdecimal() and int(count) > 0


def _slurm(known: Mapping[str, str]) -> LaunchedRank:
    launcher = "srun"
    counts = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS") if name in known]
    size = _number(known, counts[0] if counts else "SLURM_NTASKS", launcher)
    nodes = known.get("SLURM_STEP_NUM_NODES") or known.get("SLURM_NNODES") or known.get("SLURM_JOB_NUM_NODES")
    listed = known.get("SLURM_STEP_NODELIST") or known.get("SLURM_NODELIST") or known.get("SLURM_JOB_NODELIST")
    first = None if listed is None else first_host(listed)
    is_one_host = nodes == "1" or (nodes is None and listed == first)
    return LaunchedRank(
        launcher=launcher,
        rank=_number(known, "SLURM_PROCID", launcher),
        size=size,
        local_rank=_number(known, "SLURM_LOCALID", launcher),
        local_size=size if is_one_host else None,
        is_one_host=is_one_host,
        job=_job(known, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID", together=True),
        first_host=first,
    )


def _pmi(known: Mapping[str, str]) -> LaunchedRank:
    launcher = "mpiexec"
    size = _number(known, "PMI_SIZE", launcher)
    local_size = _number(known, "MPI_LOCALNRANKS", launcher) if size > 1 else 1
    return LaunchedRank(
        launcher=launcher,
        rank=_number(known, "PMI_RANK", launcher),
        size=size,
        local_rank=_number(known, "MPI_LOCALRANKID", launcher) if size > 1 else 0,
        local_size=local_size,
        is_one_host=local_size == size,
        job=_job(known, "PMI_JOBID", "PMI_PORT", "PMI_KVSNAME"),
        is_job_everywhere=bool(known.get("PMI_JOBID")),
    )


def first_host(listed: str) -> str:
    """The first name in a list as Slurm writes it: of `node[01-03,07],login` it is `node01`."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", listed)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", name[0] if name else listed)


def _job(known: Mapping[str, str], *names: str, together: bool = False) -> str:
    """Return the value of the first of these variables that is set, or of all; else the session of all workers.

    If each has a session of its own, the process that has started all.
    """
    values = [known[name] for name in names if known.get(name)]
    if not values:
        session = os.getsid(0)
        return f"started by {os.getppid()}" if session == os.getpid() else f"in session {session}"
    return " ".join(values) if together else values[0]


def _number(known: Mapping[str, str], name: str, launcher: str) -> int:
    value = known.get(name)
    if value is None:
        raise ConfigurationError(
            f"{launcher} has started this process, and {name} is not set; it is needed to find the other workers"
        )
    if not (value.isdecimal() and len(value) < 10):
        raise ConfigurationError(f"{name}={value} is not a rank or size; {launcher} sets a whole number")
    return int(value)


def address_of_first(addresses: Sequence[str], port: str, *, launcher: str, is_first: bool, timeout: float) -> str:
    """The one of `addresses`, or names, of the launcher's host at which rank 0 is reached.

    Rank 0 (`is_first`) finds out whether it is there, and raises `ConfigurationError` if not; the others try each until
    somebody listens at `port`. A single one is taken as it is. Raises `WireTimeout`.
    """
    if is_first:
        here = [address for address in addresses if _is_ours(address)]
        if not here:
            raise ConfigurationError(
                f"rank 0 is on {socket.gethostname()}, and {launcher} runs on another host ({addresses[0]}); set "
                f"MASTER_ADDR to the address of {socket.gethostname()} for all of them, or let {launcher} begin there"
            )
        return here[0]
    if len(addresses) == 1 or not port.isdecimal():
        return addresses[0]
    until = time.monotonic() + timeout
    while True:
        for address in addresses:
            with suppress(OSError), socket.create_connection((address, int(port)), timeout=_ANSWERS_WITHIN):
                return address
        if time.monotonic() > until:
            raise WireTimeout(
                f"rank 0 was not met at port {port} of {', '.join(addresses)} within {timeout:g} s; set MASTER_ADDR to "
                "the address of its host"
            )
        time.sleep(_LOOK_EVERY)


def _is_ours(address: str) -> bool:
    """Whether an address or a name is of this host: a socket can be bound to it."""
    with suppress(OSError):
        for kind, _, _, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(kind, socket.SOCK_STREAM) as probe:
                probe.bind(where)
                return True
    return False


def meet_on_this_host(launched: LaunchedRank, timeout: float) -> tuple[Board, Path]:
    """The board of the workers that are started with this one, and the folder for their sockets.

    Nothing listens on the network. Raises `WireTimeout` where rank 0 does not come.
    """
    if launched.rank == 0:
        folder = make_socket_folder(launched.job)
        server = BoardServer(folder / _BOARD)
        (folder / _OPEN).touch()
        atexit.register(_close, server, folder, os.getpid())  # after the worker's own end, which is registered later
        return SocketBoard(server.path), folder
    until = time.monotonic() + timeout
    while True:
        served = find_socket_folder(launched.job)
        if served is not None and (served / _OPEN).exists():
            return SocketBoard(str(served / _BOARD)), served
        if time.monotonic() > until:
            raise WireTimeout(
                f"rank 0 of the {launched.size} workers that {launched.launcher} has started did not answer on this "
                f"host within {timeout:g} s. If it runs, set MASTER_ADDR and MASTER_PORT to where it can listen"
            )
        time.sleep(_MEETING_LOOK_EVERY)


def _close(server: BoardServer, folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
