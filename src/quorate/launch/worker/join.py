"""`join`: become one of the workers, however this process was started."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.errors import ConfigurationError, QuorateError, WireTimeout
from quorate.core.telling import flush, tell
from quorate.data.context import data_context
from quorate.launch.local.newcomers import MOST_NEWCOMERS
from quorate.launch.local.orphans import watch_launcher
from quorate.launch.run.overrides import overrides_here
from quorate.launch.worker.backend import backend_here, gpu_backend_here
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
from quorate.launch.worker.meeting import meet_on_this_host
from quorate.launch.worker.other_launchers import seat_here
from quorate.launch.worker.own_servers import prepare_servers
from quorate.launch.worker.preparing import prepare
from quorate.launch.worker.recording import start_records
from quorate.launch.worker.torch_waits import TorchWaits, WaitedStore
from quorate.launch.worker.world import World
from quorate.sharding.mesh import Meshes
from quorate.wire import current
from quorate.wire.board import MemoryBoard, SocketBoard
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.gpus import gpu_backend
from quorate.wire.real.wire import RealWire
from quorate.wire.survivors import DeathTolerance


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
        news = LauncherNews(board)
        place.provide(news)
        place.provide(DeathTolerance(partial(news.try_to_pass_on, wire)))
    ours = not (dist.is_initialized() or wire.is_newcomer)
    if wire.is_newcomer:
        data_context(place).seat = _number("LOCAL_RANK") or 0
    waits = place.context(_Joined).waits = TorchWaits(place, wire)
    if ours:
        _start_default_group(wire, waits, gpus, "default", wire.rank, wire.size)
    elif wire.is_newcomer:
        place.provide(Meshes(partial(_start_default_group, wire, waits, gpus)))
    end_well(place, ours)
    if most > 1:
        waits.start()
        place.leaving.append(waits.close)
    return place


def _came_to_nothing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End with one sentence and a status after an error before the worker has joined, as after later ones."""
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
    """Return the failure of the run on the board, which may arrive soon after a connection has broken."""
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
