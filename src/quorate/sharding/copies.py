"""The number of workers that hold the same numbers of a parameter, so that norms count each number once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quorate.core.axes import SHARDS, TENSOR
from quorate.core.local_tensor import is_sharded
from quorate.sharding.mesh import Seat


def copies_of(p: Tensor, seat: Seat) -> int:
    """Return the copies of `p`: along the axes of `seat` along which it is not cut, and in other stages."""
    along = seat.traffic.along
    count = 1 if along is None else along.holders(p)
    for name, size in ((SHARDS, seat.axes.shards), (TENSOR, seat.axes.tensor)):
        if size > 1 and not _is_cut(p, name):
            count *= size
    return count


def _is_cut(p: Tensor, axis: str) -> bool:
    sharded: Any = p
    names = (sharded.device_mesh.mesh_dim_names or ()) if is_sharded(p) else ()
    return axis in names and hasattr(sharded.placements[names.index(axis)], "dim")
