"""`join`: become one of the workers, however this process was started."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.errors import ConfigurationError
from quorate.launch.ending import end_well
from quorate.launch.orphans import watch_launcher
from quorate.launch.overrides import overrides_here
from quorate.launch.preparing import prepare
from quorate.launch.recording import start_records
from quorate.launch.world import World
from quorate.wire import current
from quorate.wire.board import MemoryBoard, SocketBoard
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.wire import RealWire
from quorate.wire.store import BoardStore, StoreBoard

_KEPT = "world"


def join(*, timeout: float = DEFAULT_TIMEOUT, records: bool | None = None) -> World:
    """Join the workers this process was started with, and return the `World`; calling it again returns the same.

    Works under `quorate run` (real and virtual), torchrun, in a process whose default process group is already there
    (used, never re-created), and in a process on its own (a world of one). Where torch's default process group is not
    there, it is made, so that samplers, meshes and the user's own collectives work.

    `timeout` is the number of seconds any wait lasts at most. `records` says whether what happens is written down, in
    a folder below `runs`; None: wherever a launcher started several workers, or `quorate run` any. Raises
    `ConfigurationError` where the launcher's environment is incomplete; `WireTimeout` naming the workers that did not
    come.
    """
    place = current.place()
    if place is None:
        watch_launcher()
        place = _enter(timeout)
    if _KEPT not in place.kept:
        device = _device() if isinstance(place.wire, RealWire) else torch.device("cpu")
        prepare(place, overrides_here())
        start_records(place, str(device), overrides_here(), wanted=records)
        place.kept[_KEPT] = World(place, device)
    world: World = place.kept[_KEPT]
    return world


def _enter(timeout: float) -> current.Place:
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    address = os.environ.get("QUORATE_BOARD", "")
    board: Board
    folder: Path | None = None
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        board = StoreBoard(dist.PrefixStore("quorate", dist.distributed_c10d._get_default_store()))
    elif rank is None or size is None:
        if rank is not None or size is not None:
            raise ConfigurationError("RANK and WORLD_SIZE must be set together; a launcher sets both")
        rank, size, board = 0, 1, MemoryBoard()
    elif address.startswith("unix:"):
        board = SocketBoard(address.removeprefix("unix:"))
        folder = Path(address.removeprefix("unix:")).parent
    else:
        store, rank, size = next(iter(dist.rendezvous("env://")))
        board = StoreBoard(dist.PrefixStore("quorate", store))
    wire = RealWire(Endpoint(board, rank, size, timeout=timeout, folder=folder))
    place = current.enter(wire)
    ours = not dist.is_initialized()
    if ours:
        _start_default_group(wire)
    end_well(place, ours)
    return place


def _start_default_group(wire: RealWire) -> None:
    """torch's default process group over our board, so that nothing more listens beyond this machine."""
    if wire.endpoint.is_local and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if os.uname().sysname == "Darwin" else "lo"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = BoardStore(wire.board, "default", timeout=wire.timeout)
    dist.init_process_group(backend, store=store, rank=wire.rank, world_size=wire.size)


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
    if not value.isdigit():
        raise ConfigurationError(f"{name}={value} is no rank or size; a launcher sets a whole number")
    return int(value)
