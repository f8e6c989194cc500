"""`join`: become one of the workers, however this process was started.

Which backend torch's default process group has.

Where the workers of one host meet whose launcher offers no place: rank 0 serves a board on a Unix socket.

What a process learns of servers of their own as it joins, and what one is prepared with that is one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.errors import ConfigurationError, QuorateError, WireTimeout, unknown
from quorate.core.telling import flush, tell
from quorate.data.context import data_context
from quorate.launch.local.newcomers import MOST, MOST_NEWCOMERS
from quorate.launch.local.orphans import watch_launcher
from quorate.launch.run.overrides import overrides_here
from quorate.launch.worker.between_hosts import (
    address_here,
    congestion_here,
    interface_of,
    is_encrypted_here,
    limits_here,
    token_here,
)
from quorate.launch.worker.ending import end_well, status_after_error
from quorate.launch.worker.gangs import board_in
from quorate.launch.worker.launcher_news import LauncherNews
from quorate.launch.worker.other_launchers import Seat, seat_here
from quorate.launch.worker.preparing import prepare
from quorate.launch.worker.recording import start_records
from quorate.launch.worker.torch_waits import TorchWaits, WaitedStore
from quorate.launch.worker.world import World
from quorate.servers.own import OwnServers
from quorate.sharding.mesh import Meshes
from quorate.wire import current
from quorate.wire.board import MemoryBoard, SocketBoard
from quorate.wire.board_server import BoardServer
from quorate.wire.current import Place
from quorate.wire.failure import note_server
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.gpus import GPU_BACKENDS, NCCL, gpu_backend
from quorate.wire.real.wire import RealWire
from quorate.wire.socket_folder import find_socket_folder, make_socket_folder
from quorate.wire.survivors import DeathTolerance, Survivors


@dataclass
class _Joined:
    """One of each worker."""

    world: World | None = None
    waits: TorchWaits | None = None
    """Has the store of torch's default process group, which NCCL asks for as long as the worker is there."""


_SOON = 1.0
"""Seconds; longer than a launcher needs to notice that a worker has died."""


def join(*, timeout: float = DEFAULT_TIMEOUT, records: bool | None = None, log: str | None = None) -> World:
    """Join the workers this process was started with, and return the `World`; calling it again returns the same.

    Works under `quorate run` (real and virtual), torchrun, srun and mpirun, in a process whose default process group is
    already there (used, never re-created), and in a process on its own (a world of one). Where torch's default process
    group is not there, it is made, so that samplers, meshes and the user's own collectives work.

    `timeout` is the number of seconds any wait lasts at most. `records` says whether what happens is written down, in
    a folder below `runs`; None: wherever a launcher started several workers, or `quorate run` any. `log` names, with
    commas, where rank 0's losses and what it gives to `quorate.log` go beside the records: tensorboard, wandb, mlflow,
    or none; None: tensorboard where it is installed. `quorate run --log` overrides it. Raises
    `MissingExtra` for a logger that is not installed, `ConfigurationError` where the launcher's environment is
    incomplete, and `WireTimeout` naming the workers that did not come.
    """
    place = current.place()
    if place is None:
        try:
            watch_launcher()
            place = _enter(timeout)
        except (QuorateError, KeyboardInterrupt):
            sys.excepthook = _came_to_nothing
            raise
    joined = place.context(_Joined)
    if joined.world is None:
        prepare_servers(place)
        device = _device() if isinstance(place.wire, RealWire) else torch.device("cpu")
        prepare(place, overrides_here())
        start_records(place, str(device), overrides_here(), wanted=records, log=log)
        joined.world = World(place, device)
    return joined.world


def _enter(timeout: float) -> current.Place:
    seat = None if dist.is_initialized() else seat_here()
    if seat is not None:
        os.environ.update(seat.environment(os.environ, timeout))
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    address = os.environ.get("QUORATE_BOARD", "")
    board: Board
    folder: Path | None = None
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        board = board_in(dist.distributed_c10d._get_default_store(), rank, size, timeout)
    elif rank is None or size is None:
        if rank is not None or size is not None:
            raise ConfigurationError("RANK and WORLD_SIZE must be set together; a launcher sets both")
        rank, size, board = 0, 1, MemoryBoard()
    elif address.startswith("unix:"):
        board = SocketBoard(address.removeprefix("unix:"))
        folder = Path(address.removeprefix("unix:")).parent
    elif (
        seat is not None and seat.is_one_host and not (os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"))
    ):
        board, folder = meet_on_this_host(seat, timeout)
    else:
        store, rank, size = _meet(timeout)
        board = board_in(store, rank, size, timeout)
    most = _number("QUORATE_MOST") or size
    if most > size + MOST_NEWCOMERS:
        raise ConfigurationError(f"QUORATE_MOST={most} is more than {size} workers plus {MOST_NEWCOMERS} that may join")
    if rank >= max(size, most):
        raise ConfigurationError(f"RANK={rank} is not below WORLD_SIZE={size}; a launcher sets ranks from 0 on")
    endpoint = Endpoint(
        board,
        rank,
        size,
        most=most,
        timeout=timeout,
        folder=folder,
        token=token_here(),
        find_address=address_here,
        limits=limits_here(),
        is_encrypted=is_encrypted_here(),
        congestion=congestion_here(),
    )
    _device()
    gpus = gpu_backend(endpoint.board, rank, size, gpu_backend_here(), timeout)
    wire = RealWire(endpoint, gpus=gpus)
    place = current.enter(wire)
    if endpoint.board is not board and isinstance(board, SocketBoard):
        news = place.context(LauncherNews)
        news.board = board
        place.context(DeathTolerance).tell_launcher = partial(news.try_to_pass_on, wire)
    ours = not (dist.is_initialized() or wire.is_newcomer)
    if wire.is_newcomer:
        data_context(place).seat = _number("LOCAL_RANK") or 0
    waits = place.context(_Joined).waits = TorchWaits(place, wire)
    if ours:
        _start_default_group(wire, waits, gpus, "default", wire.rank, wire.size)
    elif wire.is_newcomer:
        place.context(Meshes).start_group = partial(_start_default_group, wire, waits, gpus)
    end_well(place, ours)
    if most > 1:
        waits.start()
        place.leaving.append(waits.close)
    return place


def _came_to_nothing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What goes wrong before the worker has joined is one sentence, and a status, as it is later."""
    if issubclass(kind, KeyboardInterrupt):
        tell("quorate: interrupted\n")
    elif issubclass(kind, QuorateError):
        tell(f"quorate: {error}\n")
    else:
        sys.__excepthook__(kind, error, trace)
        return
    flush()
    atexit.register(os._exit, status_after_error(kind))


def _meet(timeout: float) -> tuple[dist.Store, int, int]:
    """The store at MASTER_ADDR and MASTER_PORT, our rank, and the size of the world."""
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, rank, size = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=timeout))))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error):
            raise ConfigurationError(
                f"rank 0 cannot listen at {where}, which another process uses; choose another MASTER_PORT"
            ) from None
        raise WireTimeout(
            f"no other worker was reached at {where} within {timeout:g} s: {_first_line(error)}"
        ) from None
    except dist.DistStoreError as error:
        raise WireTimeout(f"not all workers came to {where} within {timeout:g} s: {_first_line(error)}") from None
    except ValueError as error:  # a variable that is missing, or no number
        raise ConfigurationError(f"a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: {error}") from None
    return store, rank, size


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _start_default_group(wire: RealWire, waits: TorchWaits, gpus: str, name: str, rank: int, size: int) -> None:
    """torch's default process group over our board, so that nothing more listens beyond this machine. Its collectives,
    those of models in shards on GPUs too, wait no longer than the wire."""
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        loopback = "lo0" if os.uname().sysname == "Darwin" else "lo"
        interface = loopback if wire.endpoint.is_local else interface_of(wire.endpoint.address)
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    store = waits.store = WaitedStore(waits, wire.board, name, wire.timeout)
    try:
        limit = timedelta(seconds=wire.timeout)
        dist.init_process_group(backend_here(gpus), store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, OSError):
        failure = _failure_of(wire)
        if failure is None:
            raise
        raise failure from None


def _failure_of(wire: RealWire) -> QuorateError | None:
    """The failure of the run that is on the board, or comes there soon after a connection has broken."""
    try:
        wire.board.wait(["failure"], _SOON)
    except WireTimeout:
        return None
    except QuorateError as failure:
        return failure
    return None


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = _number("LOCAL_RANK") or 0
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if not (value.isdecimal() and len(value) < 10):
        raise ConfigurationError(f"{name}={value} is not a rank or size; a launcher sets a whole number")
    return int(value)


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
    """As torch takes it: by QUORATE_BACKEND for tensors of the CPU, by default gloo; for those of GPUs NCCL, or with
    `gpus="host"` gloo.

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
    return f"cpu:{chosen},cuda:{'nccl' if gpus == NCCL else 'gloo'}" if torch.cuda.is_available() else chosen


_BOARD, _OPEN = "board", "open"
_LOOK_EVERY = 0.02


def meet_on_this_host(seat: Seat, timeout: float) -> tuple[Board, Path]:
    """The board of the workers that are started with this one, and the folder for their sockets.

    Nothing listens on the network. Raises `WireTimeout` where rank 0 does not come.
    """
    if seat.rank == 0:
        folder = make_socket_folder(seat.job)
        server = BoardServer(folder / _BOARD)
        (folder / _OPEN).touch()
        atexit.register(_close, server, folder, os.getpid())  # after the worker's own end, which is registered later
        return SocketBoard(server.path), folder
    until = time.monotonic() + timeout
    while True:
        found = find_socket_folder(seat.job)
        if found is not None and (found / _OPEN).exists():
            return SocketBoard(str(found / _BOARD)), found
        if time.monotonic() > until:
            raise WireTimeout(
                f"rank 0 of the {seat.size} workers that {seat.launcher} has started was not met on this host within "
                f"{timeout:g} s; if it runs, set MASTER_ADDR and MASTER_PORT to where it can listen"
            )
        time.sleep(_LOOK_EVERY)


def _close(server: BoardServer, folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


SERVERS = "QUORATE_SERVERS"
"""How many of the highest ranks are servers."""


def prepare_servers(place: Place) -> None:
    """Let this worker, or server, know which ranks are servers.

    On one, what workers call together before `distribute` is its own, alone. Raises `ConfigurationError` for a number
    that cannot be.
    """
    wire, own = place.wire, place.context(OwnServers)
    text = os.environ.get(SERVERS, "")
    if text:
        most = min(MOST, wire.max_size - wire.size)
        if not (text.isdecimal() and len(text) < 10 and int(text) <= most):
            raise ConfigurationError(
                f"{SERVERS} is {text!r}; it must be at most {most}, the number of ranks that are not workers"
            )
        own.ranks = range(wire.max_size - int(text), wire.max_size)
    if wire.rank in own.ranks:
        note_server(wire.board, wire.rank)
        data_context(place).seat = None
        place.context(DeathTolerance).survivors = Survivors(wire.channel("survivors"))
        place.leaving.append(lambda: _check(own))


def _check(own: OwnServers) -> None:
    if not own.has_served:
        raise ConfigurationError(
            "this rank is a server (--servers), but the script never called quorate.distribute; leave out --servers"
        )
