"""The axes of the workers: so many replicas of the model, each spread over so many workers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.current import Place

REPLICAS, SHARDS = "replicas", "shards"


@dataclass(frozen=True)
class Axes:
    """`replicas` x `shards` workers. Workers of one replica have neighbouring ranks."""

    replicas: int
    shards: int

    @property
    def in_words(self) -> str:
        """As the command line takes it."""
        return f"{REPLICAS}={self.replicas},{SHARDS}={self.shards}"


def axes_for(size: int, replicas: int | None, shards: int | None) -> Axes:
    """The axes of `size` workers; one of the two may be None, and is found. Raises `ConfigurationError`."""
    for name, number in ((REPLICAS, replicas), (SHARDS, shards)):
        if number is not None and _is_no_size(number):
            raise ConfigurationError(f"{name}={number!r} is no size of a mesh; it is a whole number from 1 on")
    if replicas is None and shards is None:
        raise ConfigurationError("a mesh needs replicas=, shards=, or both; what is left out is found from the other")
    known = (replicas or 1) * (shards or 1)
    is_right = size % known == 0 if replicas is None or shards is None else size == known
    if not is_right:
        asked = ",".join(f"{n}={v}" for n, v in ((REPLICAS, replicas), (SHARDS, shards)) if v is not None)
        raise ConfigurationError(
            f"{size} workers cannot be laid out as {asked}; replicas times shards is the number of workers"
        )
    return Axes(replicas or size // known, shards or size // known)


def _is_no_size(number: object) -> bool:
    return isinstance(number, bool) or not isinstance(number, int) or number < 1


def axes_from_text(text: str, size: int) -> Axes:
    """Axes as the command line has them: `replicas=2,shards=2`. Raises `ConfigurationError`."""
    told: dict[str, int] = {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if name not in (REPLICAS, SHARDS) or name in told or not (number.isdecimal() and len(number) < 7):
            raise ConfigurationError(
                f'"{text}" is no mesh; write replicas=R,shards=S (one of the two may be left out), in whole numbers'
            )
        told[name] = int(number)
    return axes_for(size, told.get(REPLICAS), told.get(SHARDS))


@dataclass
class Meshes:
    """One of each worker."""

    told: Axes | None = None
    """What the command line says."""
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
    across = wire.channel("mesh/across").group(ranks[:, shard].tolist())
    within = wire.channel("mesh/within").group(ranks[replica].tolist())
    return Seat(Axes(*ranks.shape), replica, shard, across, within, mesh[SHARDS])
