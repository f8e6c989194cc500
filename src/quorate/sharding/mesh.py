"""The mesh of a run's workers, replicas by shards, and where each worker is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from quorate.core.axes import REPLICAS, SHARDS, Axes, Offload, Zero
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.traffic import Traffic
from quorate.wire.current import Place
from quorate.wire.group import GroupWire


@dataclass
class Meshes:
    """One of each worker."""

    told: Axes | None = None
    """What the command line says."""
    told_zero: Zero | None = None
    """The same of the stage of ZeRO."""
    told_offload: Offload | None = None
    """And of what rests in host memory."""
    made: dict[Axes, DeviceMesh] = field(default_factory=dict)


def mesh_of(place: Place, axes: Axes, device: torch.device) -> DeviceMesh:
    """The mesh of all workers, rows being replicas; made once, by all workers together."""
    made = place.context(Meshes).made
    if axes not in made:
        if not dist.is_initialized():
            raise ConfigurationError(
                "a mesh is of real processes, which torch's collectives connect; virtual workers have none"
            )
        made[axes] = init_device_mesh(device.type, (axes.replicas, axes.shards), mesh_dim_names=(REPLICAS, SHARDS))
    return made[axes]


@dataclass(frozen=True)
class Seat:
    """Where this worker is in a mesh, and how it reaches its neighbours there."""

    axes: Axes
    replica: int
    shard: int
    across: Wire
    """Those that hold the same shard, one of each replica, in order."""
    within: Wire
    """The workers of its replica."""
    shards: DeviceMesh
    """The same workers, as torch knows them."""
    workers: Sequence[Sequence[int]]
    """The ranks of each replica's workers."""

    @property
    def mates(self) -> Sequence[int]:
        """The ranks of its replica's workers."""
        return self.workers[self.replica]

    traffic: Traffic = field(default_factory=Traffic)
    """What these send each other for one model."""


def seat_in(mesh: DeviceMesh, wire: Wire) -> Seat:
    """This worker's seat. Raises `ConfigurationError` for a mesh that has other axes, or other workers."""
    names = tuple(mesh.mesh_dim_names or ())
    if SHARDS not in names or not set(names) <= {REPLICAS, SHARDS}:
        raise ConfigurationError(
            f"the mesh has the axes {', '.join(names) or 'without names'}; quorate.parallelize takes one of replicas "
            "and shards, as world.mesh(replicas=2, shards=2) makes it"
        )
    ranks = mesh.mesh if names == (REPLICAS, SHARDS) else mesh.mesh.T if len(names) == 2 else mesh.mesh.unsqueeze(0)
    if ranks.numel() != wire.size:
        raise ConfigurationError(f"the mesh has {ranks.numel()} workers, and this run {wire.size}; it has to have all")
    (replica,), (shard,) = (found.tolist() for found in (ranks == wire.rank).nonzero(as_tuple=True))
    across = GroupWire(wire.channel("mesh/across"), ranks[:, shard].tolist(), ranks.tolist())
    within = wire.channel("mesh/within").group(ranks[replica].tolist())
    return Seat(Axes(*ranks.shape), replica, shard, across, within, mesh[SHARDS], ranks.tolist())
