"""The mesh of a run's workers, replicas by stages by shards by tensor, and the position of each worker in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from quorate.core.axes import AXES, REPLICAS, SHARDS, STAGES, TENSOR, Axes, Offload, Zero
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.data.context import DataContext
from quorate.sharding.traffic import Traffic
from quorate.wire.group import GroupWire
from quorate.wire.naming import note_axes
from quorate.wire.real.mesh_wire import MeshWire, TorchGroup
from quorate.wire.real.wire import RealWire


@dataclass
class Meshes:
    """The meshes of one worker, and settings from the command line."""

    start_group: Callable[[str, int, int], None] | None = None
    """Starts torch's default process group of a worker that joins: its name, the place of the worker, and its size."""
    axes: Axes | None = None
    """Axes from the command line."""
    zero: Zero | None = None
    """Stage of ZeRO from the command line."""
    offload: Offload | None = None
    """Offloading from the command line."""
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    """The device on which the worker computes."""
    made: dict[Axes, DeviceMesh] = field(default_factory=dict)

    def mesh(self, wire: Wire, axes: Axes, device: torch.device) -> DeviceMesh:
        """Return the mesh of all workers, with replicas as rows; all workers make it together, once.

        Axes of one stage, or without layers that are computed together, are left out.
        """
        made = self.made
        if axes not in made:
            if self.start_group is not None and not dist.is_initialized():
                each = axes.of_replica
                replica, position = divmod(wire.rank - wire.size, each)
                self.start_group(f"replica {axes.replicas + replica}", position, each)
            if not dist.is_initialized():
                raise ConfigurationError(
                    "a mesh needs real processes, since torch's collectives do not connect virtual workers"
                )
            sizes = dict(zip(AXES, axes.sizes, strict=True))
            if wire.is_newcomer:
                sizes[REPLICAS] = 1
            sizes = {name: count for name, count in sizes.items() if count > 1 or name in (REPLICAS, SHARDS)}
            made[axes] = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return made[axes]


def newcomers(ranks: Tensor, wire: Wire) -> Tensor:
    """Return the ranks of replicas that may join those of `ranks`, with the same layout; workers join as full replicas.
    Raises `ConfigurationError` where replicas are not of neighbouring ranks."""
    each = ranks[0].numel()
    more = torch.arange(wire.size, wire.max_size - (wire.max_size - wire.size) % each)
    if more.numel() and not torch.equal(ranks.flatten(), torch.arange(wire.size)):
        raise ConfigurationError(
            "workers join replicas of neighbouring ranks, as world.mesh() lays them out; this mesh has others"
        )
    return more.reshape(-1, *ranks.shape[1:])


def deal_to(data: DataContext, rank: int, axes: Axes, coordinates: Coordinates | None = None) -> None:
    """Divide data so that stages, and workers along the tensor axis, get the same batches.

    There are `axes.batches` shares, and this worker gets the share of its `coordinates` (None: as `Meshes.mesh` lays
    workers out). Raises `ConfigurationError` where data has been divided already.
    """
    if axes.tensor * axes.stages == 1 or data.deals is not None:
        return
    if data.made:
        raise ConfigurationError(
            "quorate.loader was called before quorate.parallelize, and has given workers that compute a model together "
            "different batches; call quorate.parallelize before it"
        )
    replica, stage = rank // axes.of_replica, rank // (axes.shards * axes.tensor) % axes.stages
    shard, part = rank // axes.tensor % axes.shards, rank % axes.tensor
    if coordinates is not None:
        replica, stage, shard, part = coordinates.replica, coordinates.stage, coordinates.shard, coordinates.part
    data.deals, data.repeats = (axes.batches, replica * axes.shards + shard), stage + part > 0


@dataclass(frozen=True)
class Coordinates:
    """The position of this worker in a mesh, and the wires to its neighbours there."""

    axes: Axes
    replica: int
    stage: int
    shard: int
    part: int
    """Its position among the workers that compute layers together."""
    across: Wire
    """The workers with the same piece, one of each replica, in order."""
    within: Wire
    """The workers of its replica."""
    along: Wire
    """The workers of its replica with the same shard and part, of all stages in order."""
    abreast: Wire
    """The workers of its replica with the same stage."""
    beside: Wire
    """The workers of `abreast` that hold the other shards of the same neurons and heads."""
    together: Wire
    """The workers that compute layers with it, on the same batches."""
    shards: DeviceMesh
    """The workers of `beside`, as torch's mesh."""
    parts: DeviceMesh | None
    """The workers of `together`, as torch's mesh; None where there are no others."""
    workers: Sequence[Sequence[int]]
    """The ranks of each replica's workers, including replicas that may join."""
    traffic: Traffic = field(default_factory=Traffic)
    """Messages between these workers for one model."""

    @property
    def in_replica(self) -> int:
        """Its position among the workers of its replica."""
        return (self.stage * self.axes.shards + self.shard) * self.axes.tensor + self.part

    @property
    def replica_ranks(self) -> Sequence[int]:
        """The ranks of its replica's workers."""
        return self.workers[self.replica]


def coordinates_in(mesh: DeviceMesh, wire: Wire) -> Coordinates:
    """Return this worker's coordinates. Raises `ConfigurationError` for a mesh with other axes, or other workers."""
    names = tuple(mesh.mesh_dim_names or ())
    if SHARDS not in names or not set(names) <= set(AXES):
        raise ConfigurationError(
            f"the mesh has the axes {', '.join(names) or 'without names'}; quorate.parallelize takes one of replicas, "
            "stages, shards and tensor, as world.mesh(replicas=2, shards=2) makes it"
        )
    there = [name for name in AXES if name in names]
    sizes = [mesh.mesh.shape[names.index(name)] if name in names else 1 for name in AXES]
    ranks = mesh.mesh.permute([names.index(name) for name in there]).reshape(sizes)
    if wire.is_newcomer:  # its mesh is of its own replica alone
        sizes[0] = wire.size // ranks.numel()
        ranks = torch.arange(wire.size).reshape(sizes)
    if ranks.numel() != wire.size:
        raise ConfigurationError(
            f"the mesh has {ranks.numel()} workers, and this run {wire.size}; it must have all of them"
        )
    if ranks.flatten().tolist() == list(range(wire.size)) and ranks[0].numel() > 1 and not wire.is_newcomer:
        note_axes(wire.board, _axes(sizes))
    ranks = torch.cat([ranks, newcomers(ranks, wire)])
    ((replica, stage, shard, part),) = (ranks == wire.rank).nonzero().tolist()

    def among(name: str, members: Tensor, axis: str = "") -> Wire:
        own = members.flatten().tolist()
        return _along(wire, name, own, (None, len(own)), mesh[axis] if axis in names else None, in_stream=True)

    workers = ranks.flatten(1).tolist()
    copies, rows = ranks[:, stage, shard, part].tolist(), mesh[REPLICAS] if REPLICAS in names else None
    return Coordinates(
        axes=_axes(sizes),
        replica=replica,
        stage=stage,
        shard=shard,
        part=part,
        across=_along(wire, "across", copies, (workers, sizes[0]), rows, in_stream=False),
        within=among("within", ranks[replica]),
        along=among("along", ranks[replica, :, shard, part], STAGES),
        abreast=among("abreast", ranks[replica, stage], SHARDS if sizes[3] == 1 else TENSOR),
        beside=among("beside", ranks[replica, stage, :, part], SHARDS),
        together=among("together", ranks[replica, stage, shard], TENSOR),
        shards=mesh[SHARDS],
        parts=mesh[TENSOR] if sizes[3] > 1 else None,
        workers=workers,
    )


def _along(wire: Wire, name: str, members: list[int], size: Any, axis: DeviceMesh | None, *, in_stream: bool) -> Wire:
    """Return the wire among `members`, by torch's group of the same workers if that serves the device of the mesh."""
    channel = wire.channel(f"mesh/{name}")
    if axis is None or len(members) == 1 or not isinstance(channel, RealWire):
        return GroupWire(channel, members, *size)
    group = axis.get_group()
    if dist.get_process_group_ranks(group) != members[: size[1]] or not channel.reaches(group, axis.device_type):
        return GroupWire(channel, members, *size)
    named = f"{wire.name}/{name}{members}"
    return MeshWire(TorchGroup(channel.endpoint, group, named, members, in_stream=in_stream), channel, members, *size)


def _axes(sizes: Sequence[int]) -> Axes:
    replicas, stages, shards, tensor = sizes
    return Axes(replicas, shards, tensor, stages)


def copies_of(p: Tensor, coordinates: Coordinates) -> int:
    """Return the copies of `p`: along the axes of `coordinates` along which it is not cut, and in other stages."""
    along = coordinates.traffic.along
    count = 1 if along is None else along.holders(p)
    for name, size in ((SHARDS, coordinates.axes.shards), (TENSOR, coordinates.axes.tensor)):
        if size > 1 and not _is_cut(p, name):
            count *= size
    return count


def _is_cut(p: Tensor, axis: str) -> bool:
    sharded: Any = p
    names = (sharded.device_mesh.mesh_dim_names or ()) if is_sharded(p) else ()
    return axis in names and hasattr(sharded.placements[names.index(axis)], "dim")
