"""What `fully_shard` says under a strategy, before any update."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from quorate.core.errors import ConfigurationError
from quorate.launch.takeover.fully_shard import Asked, _refuse_flat, fully_shard
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


def mesh(*shape: int, ranks: list[int] | None = None) -> Any:
    """What is read of a `DeviceMesh`."""
    numbers = torch.arange(torch.Size(shape).numel()) if ranks is None else torch.tensor(ranks)
    return SimpleNamespace(ndim=len(shape), mesh=numbers.reshape(shape))


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
REFUSED: dict[str, Callable[[], Any]] = {
    "without a mesh, so that all workers hold one replica": lambda: fully_shard(nn.Linear(2, 1)),
    "a mesh of one replica over all workers": lambda: fully_shard(nn.Linear(2, 1), mesh=mesh(4)),
    "a mesh of one replica over all": lambda: fully_shard(nn.Linear(2, 1), mesh=mesh(1, 4)),
    "a mesh of 8 of 4 workers": lambda: fully_shard(nn.Linear(2, 1), mesh=mesh(2, 4)),
    "are not neighbours by rank": lambda: fully_shard(nn.Linear(2, 1), mesh=mesh(2, 2, ranks=[0, 2, 1, 3])),
    "given ignored_params": lambda: fully_shard(nn.Linear(2, 1), mesh=mesh(2, 2), ignored_params={nn.Parameter()}),
    "given offload_policy": lambda: fully_shard(nn.Linear(2, 1), mesh=mesh(2, 2), offload_policy=CPUOffloadPolicy()),
    "an mp_policy that": lambda: fully_shard(
        nn.Linear(2, 1), mesh=mesh(2, 2), mp_policy=MixedPrecisionPolicy(output_dtype=torch.float32)
    ),
    "several precisions": lambda: [fully_shard(nn.Linear(2, 1), mesh=mesh(2, 2), mp_policy=x) for x in (None, HALF)],
    "meshes of other sizes": lambda: [fully_shard(nn.Linear(2, 1), mesh=mesh(*x)) for x in ((2, 2), (4, 1))],
    "is no part of the model that is called": lambda: [
        fully_shard(nn.Linear(2, 1), mesh=mesh(2, 2))(torch.ones(1, 2)) for _ in range(2) if fully_shard(
            nn.Linear(2, 2), mesh=mesh(2, 2)
        )
    ],
    "torch's FullyShardedDataParallel keeps a piece": _refuse_flat,
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_it_is_refused(sentence: str) -> None:
    def task(world: World) -> None:
        REFUSED[sentence]()

    with pytest.raises(ConfigurationError, match=sentence):
        VirtualWorld(4, seed=3).run(joined(task))


def test_blocks_are_noted_and_stay_what_they_are() -> None:
    def task(world: World) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        for module in (model[0], model):
            said = fully_shard(
                module, mesh=mesh(2, 2), reshard_after_forward=False, mp_policy=HALF, offload_policy=OffloadPolicy()
            )
            assert said is module
        assert isinstance(model, nn.Sequential) and type(model[0]).__name__ == "Linear"
        model.set_requires_gradient_sync(False)
        asked = current.here().context(Asked)
        assert asked == Asked([model[0], model], (2, 2), "bfloat16", 2, is_synchronized=False)

    VirtualWorld(4, seed=3).run(joined(task))
