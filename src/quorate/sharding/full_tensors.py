"""Full tensors of a model that is divided along shards and tensor: gathering one, and a worker's part of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from quorate.core.axes import SHARDS, TENSOR, rows_of
from quorate.core.local_tensor import is_sharded, local
from quorate.sharding.by_tensor import of_fused
from quorate.sharding.script_access import piece_of


def full_of(piece: Any) -> Tensor:
    """Gather a parameter; all workers that hold pieces of it call this.

    Along both axes its rows are gathered first, and then its parts along tensor. Gathered at once by torch, the query,
    key and value of one layer would lose their order.
    """
    if not is_sharded(piece):
        return piece  # type: ignore[no-any-return]
    mesh, numbers = piece.device_mesh, piece
    if mesh.ndim > 1:
        numbers = local(piece)
        if hasattr(piece.placements[0], "dim"):
            shape = _part_of(piece, torch.empty(piece.shape, device="meta")).shape
            numbers = _gathered(numbers, mesh[SHARDS], Shard(0), shape)
        return _gathered(numbers, mesh[TENSOR], piece.placements[1], piece.shape)
    full: Tensor = numbers.full_tensor()
    return full


def write_part(piece: Any, full: Tensor) -> None:
    """Write this worker's part of a `full` tensor into its `piece`."""
    here = local(piece)
    numbers = full.to(here)
    if is_sharded(piece) and numbers.dim():
        numbers = piece_of(piece, numbers) if piece.device_mesh.ndim == 1 else _rows_of_part(piece, numbers)
    here.copy_(numbers.view(here.shape))


def _gathered(x: Tensor, mesh: Any, placement: Any, shape: torch.Size) -> Tensor:
    stride = torch.empty(shape, device="meta").stride()
    pieces: Any = DTensor.from_local(x, mesh, [placement], run_check=False, shape=shape, stride=stride)
    full: Tensor = pieces.full_tensor()
    return full


def _rows_of_part(piece: Any, full: Tensor) -> Tensor:
    part = _part_of(piece, full)
    return _among(part, 0, piece.device_mesh[SHARDS]) if hasattr(piece.placements[0], "dim") else part


def _part_of(piece: Any, full: Tensor) -> Tensor:
    """Return the part along tensor of a `full` tensor that is divided as `piece` is."""
    placement, mesh = piece.placements[1], piece.device_mesh[TENSOR]
    if not hasattr(placement, "dim"):
        return full
    if hasattr(placement, "split_factor"):
        return of_fused(full, placement.dim, mesh.size(), mesh.get_local_rank())
    return _among(full, placement.dim, mesh)


def _among(x: Tensor, dim: int, mesh: Any) -> Tensor:
    places = rows_of(x.shape[dim], mesh.size(), mesh.get_local_rank())
    return x.narrow(dim, places.start, len(places))
