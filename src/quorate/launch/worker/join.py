"""`join`: become one of the workers, however this process was started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from quorate.core.axes import Axes, axes_from_text, offload_of, stage_of
from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.draws import common_seed, mixed
from quorate.core.errors import ConfigurationError, QuorateError, WireTimeout, unknown
from quorate.core.script_errors import OneSentence
from quorate.core.servers import OwnServers
from quorate.data.common_draws import CommonDraws
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.data.limit import Limit
from quorate.inject.failures import SlowTimes, failures_from
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import parse_pace
from quorate.launch.local.chaos import began
from quorate.launch.local.newcomers import MOST, MOST_NEWCOMERS
from quorate.launch.local.orphans import watch_launcher
from quorate.launch.run.overrides import Overrides, asked_mesh, asked_strategy, overrides_here
from quorate.launch.worker.baselines import baselines
from quorate.launch.worker.between_hosts import (
    address_here,
    congestion_here,
    interface_of,
    is_encrypted_here,
    limits_here,
    token_here,
)
from quorate.launch.worker.ending import end_well
from quorate.launch.worker.gangs import board_in
from quorate.launch.worker.other_launchers import launched_rank, meet_on_this_host
from quorate.launch.worker.recording import start_records
from quorate.launch.worker.signals import LauncherNews
from quorate.launch.worker.torch_waits import TorchWaits, WaitedStore
from quorate.launch.worker.world import World
from quorate.observe.pacing import Injected, Pacing
from quorate.observe.stopping import Stop
from quorate.records.tape import Replaying, tape_of
from quorate.sharding.mesh import Meshes, deal_to
from quorate.train.chosen import Chosen
from quorate.train.never_stepped import Undistributed
from quorate.wire import current
from quorate.wire.board import MemoryBoard, SocketBoard
from quorate.wire.current import Place
from quorate.wire.failure import note_server
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.gpus import GPU_BACKENDS, NCCL, gpu_backend
from quorate.wire.real.wire import RealWire
from quorate.wire.survivors import DeathTolerance, Survivors
from quorate.wire.virtual.wire import VirtualWire

_SOON = 1.0
"""Seconds; longer than a launcher needs to notice that a worker has died."""

BACKENDS = ("gloo", "mpi")

SERVERS = "QUORATE_SERVERS"
"""How many of the highest ranks are servers."""


@dataclass
class _Joined:
    """One of each worker."""

    world: World | None = None
    waits: TorchWaits | None = None
    """Has the store of torch's default process group, which NCCL asks for as long as the worker is there."""


def join(*, timeout: float = DEFAULT_TIMEOUT, records: bool | None = None, log: str | None = None) -> World:
    """Join the workers this process was started with, and return the `World`; a second call returns the same.

    It works under `quorate run` (real and virtual), torchrun, srun and mpirun. It also works in a process whose default
    process group exists already (it is used), and in a process on its own, a world of one worker. Otherwise it creates
    torch's default process group, so that samplers, meshes and your own collectives work.

    Args:
        timeout: The limit of every wait, in seconds.
        records: Whether records are kept in a folder below `runs`; None: if a launcher started several workers, and
            always under `quorate run`.
        log: The loggers that receive losses and logged values of rank 0 beside the records: "tensorboard", "wandb" or
            "mlflow", several separated by commas, or "none". None: tensorboard if it is installed. `quorate run --log`
            takes precedence.

    Returns:
        The workers, seen from this one.

    Raises:
        MissingExtra: A logger is not installed.
        ConfigurationError: The environment of the launcher is incomplete.
        WireTimeout: Some workers did not join in time; the error names them.

    Example:
        >>> world = quorate.join(timeout=60)
        >>> world.rank, world.size
        (0, 1)
    """
    place = current.place()
    if place is None:
        try:
            watch_launcher()
            place = _enter(timeout)
        except (QuorateError, KeyboardInterrupt):
            sys.excepthook = OneSentence(names_line=False)
            raise
    joined = place.context(_Joined)
    if joined.world is None:
        prepare_servers(place)
        is_real = isinstance(place.wire, RealWire)
        device = _device(place.wire.endpoint) if isinstance(place.wire, RealWire) else torch.device("cpu")
        prepare(place, overrides_here())
        start_records(place, str(device), overrides_here(), wanted=records, log=log)
        joined.world = World(place, device, _number("LOCAL_RANK") if is_real else None)
    return joined.world


def _enter(timeout: float) -> current.Place:
    launched = None if dist.is_initialized() else launched_rank()
    if launched is not None:
        os.environ.update(launched.environment(os.environ, timeout))
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    address = os.environ.get("QUORATE_BOARD", "")
    board: Board
    folder: Path | None = None
    is_ours = address.startswith("unix:")
    if dist.is_initialized() and not (is_ours and (rank, size) == (dist.get_rank(), dist.get_world_size())):
        rank, size = dist.get_rank(), dist.get_world_size()
        board = board_in(dist.distributed_c10d._get_default_store(), rank, size, timeout)
    elif rank is None or size is None:
        if rank is not None or size is not None:
            raise ConfigurationError("RANK and WORLD_SIZE must be set together; a launcher sets both")
        rank, size, board = 0, 1, MemoryBoard()
    elif is_ours:
        board = SocketBoard(address.removeprefix("unix:"))
        folder = Path(address.removeprefix("unix:")).parent
    elif (
        launched is not None
        and launched.is_one_host
        and not (os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"))
    ):
        board, folder = meet_on_this_host(launched, timeout)
    else:
        store, rank, size = _meet(timeout)
        board = board_in(store, rank, size, timeout)
    most = _number("QUORATE_MAX_WORKERS") or size
    if most > size + MOST_NEWCOMERS:
        raise ConfigurationError(
            f"QUORATE_MAX_WORKERS={most} is more than {size} workers plus {MOST_NEWCOMERS} that may join"
        )
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
    _device(endpoint)
    gpus = gpu_backend(endpoint.board, rank, size, gpu_backend_here(), timeout)
    wire = RealWire(endpoint, gpus=gpus)
    place = current.enter(wire)
    if endpoint.board is not board and isinstance(board, SocketBoard):
        news = LauncherNews(board)
        place.provide(news)
        place.provide(DeathTolerance(partial(news.try_to_pass_on, wire)))
    ours = not (dist.is_initialized() or wire.is_newcomer)
    if wire.is_newcomer:
        place.context(DataContext).replaced_rank = _number("LOCAL_RANK") or 0
    waits = place.context(_Joined).waits = TorchWaits(place, wire)
    if torch.cuda.is_available():
        os.environ.setdefault(
            "TORCH_FR_BUFFER_SIZE", "2000"
        )  # torch's flight recorder, off by default in some versions
    if ours:
        _start_default_group(wire, waits, gpus, "default", wire.rank, wire.size)
    elif wire.is_newcomer:
        place.provide(Meshes(partial(_start_default_group, wire, waits, gpus)))
    end_well(place, ours)
    if most > 1:
        waits.start()
        place.leaving.append(waits.close)
    return place


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
        wire.board.set(f"connected/{name}/{rank}", b"")  # one that leaves before has the others connect to nobody
        wire.board.wait([f"connected/{name}/{member}" for member in range(size)], wire.timeout)
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


def _device(endpoint: Endpoint) -> torch.device:
    """Return the current GPU where the script has chosen it, else that of the worker's number on its host; or the CPU.

    A script has chosen where torch computes on a GPU already, and its number is not 0, or nothing else says which one.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = _number("LOCAL_RANK")
    if torch.cuda.is_initialized():
        current = torch.cuda.current_device()
        if current or local is None or dist.is_initialized():
            local = current
    if local is None:
        host = endpoint.host_of(endpoint.rank)
        local = sum(endpoint.host_of(rank) == host for rank in range(endpoint.rank))
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    endpoint.use_gpu(device)
    return device


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if not (value.isdecimal() and len(value) < 10):
        raise ConfigurationError(f"{name}={value} is not a rank or size; a launcher sets a whole number")
    return int(value)


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
        place.context(DataContext).replaced_rank = None
        place.context(DeathTolerance).survivors = Survivors(wire.channel("survivors"))
        place.leaving.append(lambda: _check_served(own))


def _check_served(own: OwnServers) -> None:
    if not own.has_served:
        raise ConfigurationError(
            "this rank is a server (--servers), but the script never called quorate.distribute; leave out --servers"
        )


def prepare(place: Place, chosen: Overrides) -> None:
    """Let `chosen` be in force in this worker's place.

    A seed that was passed seeds the default generators of torch, numpy and python. All ranks have the same seed until
    an optimizer is distributed (in a virtual world they are seeded so already). Raises `ConfigurationError` for texts
    that say nothing known.
    """
    choices, data, wire = place.context(Chosen), place.context(DataContext), place.wire
    place.context(Stop).leave_within = chosen.leave_within
    if chosen.replay is not None:
        place.context(Replaying).tape = tape_of(Path(chosen.replay))
    is_real = isinstance(wire, RealWire)
    seed = data.seed = chosen.seed or 0
    choices.strategy_name, choices.settings = chosen.strategy, chosen.settings
    data.share = chosen.share
    if any(choice is not None for choice in (chosen.mesh, chosen.zero, chosen.offload)):
        meshes = place.context(Meshes)
        meshes.axes = axes_from_text(chosen.mesh, wire.size) if chosen.mesh else Axes(1, wire.size)
        deal_to(data, wire.rank, meshes.axes)
        meshes.zero = None if chosen.zero is None else stage_of(chosen.zero)
        meshes.offload = offload_of(chosen.offload)
    asked = [asked_strategy(chosen), asked_mesh(chosen, wire.size)]
    if any(asked):
        place.context(Undistributed).watch(place, " ".join(filter(None, asked)))
    choices.learning_rate_factor = chosen.learning_rate_factor
    if chosen.shrink is not None:
        from quorate.shrink.shrinking import begin  # with all of `quorate.shrink`, which other runs do not need

        choices.begun.append(partial(begin, place, chosen.shrink))
    if is_real and chosen.strategy is not None and chosen.strategy in baselines:
        choices.baselines = {chosen.strategy: baselines.get(chosen.strategy)}
        data.needs_equal_shares = chosen.strategy
    slow = _slow_times(place, chosen)
    if chosen.imbalance or chosen.pace or slow:
        imbalance = parse_imbalance(chosen.imbalance, seed=seed, size=wire.size) if chosen.imbalance else None
        pace = parse_pace(chosen.pace, seed=seed, size=wire.size) if chosen.pace else None
        place.context(Injected).pacing = Pacing(wire, place.context(Consumed), imbalance, pace, slow)
    if chosen.seconds is not None:
        data.limit = Limit(wire.channel("limit"), chosen.seconds)
    draws = place.context(CommonDraws)
    if chosen.seed is not None and is_real:
        draws.begin(common_seed(seed), mixed(seed, wire.rank))
    elif isinstance(wire, VirtualWire) and wire.generator_seeds is not None:
        draws.have_begun(*wire.generator_seeds)


def _slow_times(place: Place, chosen: Overrides) -> SlowTimes | None:
    """Return the slow times of this worker, or of the place in which it was started."""
    if chosen.failures is None and chosen.chaos is None:
        return None
    if chosen.failures is None or chosen.chaos is None or not os.environ.get("QUORATE_BOARD"):
        raise ConfigurationError(
            "QUORATE_CHAOS and QUORATE_FAILURES are set by quorate run, which strikes its workers; other launchers "
            "cannot: start the training with quorate run -n N --chaos SEED"
        )
    wire, replaced_rank = place.wire, place.context(DataContext).replaced_rank
    rank = wire.rank if replaced_rank is None else replaced_rank
    return SlowTimes(failures_from(chosen.failures), wire.size, chosen.chaos, rank, partial(began, wire.board))
