"""A piece as a plain tensor: its gradients are laid out as the whole is, also those of gradients."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import Parameter

from quorate.core.local_tensor import as_piece_of, local
from quorate.launch.worker.world import World
from quorate.sharding.plain_piece import plain_piece
from tests.support.processes import run_real_world


def look(world: World) -> None:
    """Beside torch's `to_local`."""
    mesh: DeviceMesh = world.mesh(tensor=2)["tensor"]
    for placement, shape in ((Shard(0), (6, 4)), (Replicate(), (3, 4)), (Shard(1), (3, 8))):
        here = torch.randn(3, 4, generator=torch.Generator().manual_seed(world.rank))
        gradients = []
        for way in (plain_piece, lambda p: p.to_local()):
            whole = DTensor.from_local(
                here.clone(), mesh, [placement], run_check=False, shape=shape, stride=(shape[1], 1)
            )
            p = Parameter(whole)
            (first,) = torch.autograd.grad((way(p) ** 3).sum(), p, create_graph=True)
            (second,) = torch.autograd.grad((local_of(first) * here).sum(), p)
            (way(p) ** 2).sum().backward()
            assert isinstance(p.grad, DTensor)
            gradients.append([p.grad, second])
        for ours, theirs in zip(*gradients, strict=True):
            assert ours.placements == theirs.placements == (placement,) and ours.shape == theirs.shape == shape
            assert ours.stride() == theirs.stride() and torch.equal(local(ours), local(theirs))
        assert as_piece_of(p, here.bfloat16()).dtype == torch.bfloat16


def local_of(x: DTensor) -> torch.Tensor:
    """With its graph."""
    return x.to_local()


@pytest.mark.filterwarnings("ignore")
def test_gradients_are_laid_out_as_the_whole_is() -> None:
    run_real_world(2, look, 60.0)
