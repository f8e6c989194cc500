"""Every strategy on two hosts of two workers: it trains, is evaluated, and leaves equal replicas."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from tests.support.every_strategy import NAMES, OF_ONE_HOST
from tests.support.hosts import are_possible, hosts
from tests.support.processes import outcomes_real_world, run_real_world
from tests.support.sampled import Few
from tests.support.scene import Scene

ACROSS = [name for name in NAMES if name not in OF_ONE_HOST]
pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")

EPOCHS = 2


def ends(names: list[str], world: World) -> list[tuple[str, float]]:
    """For each strategy a digest of everything that is equal in the end, and the mean of what was measured."""
    found = []
    for name in names:
        try:
            found.append(end(name, world))
        except Exception as error:
            error.add_note(f"under {name}")
            raise
    assert not world.wire.endpoint.is_local  # type: ignore[attr-defined]
    return found


def end(name: str, world: World) -> tuple[str, float]:
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(48, 3, generator=draw), torch.randn(48, 1, generator=draw))
    layers = lambda: torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))  # noqa: E731
    given: Any = {"data": data, "shard": {"batch_size": 3, "seed": 1}, "rate": 0.02, "heavy": 0.9, "seed": "rank"}
    trainer = Scene(name, model=layers, **given).trainer(world)
    for _ in range(EPOCHS):
        trainer.train_epoch()
        with world.evaluate(), torch.no_grad():
            loss = world.mean(float((trainer.model(data.tensors[0]) - data.tensors[1]).square().mean()))
    model = trainer.finish().model
    digest = hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in model.state_dict().values()))
    return digest.hexdigest(), loss


def test_every_strategy_trains_across_hosts(few: Few) -> None:
    names = few(ACROSS)
    with hosts(2) as (first, second):
        by_rank = run_real_world(4, partial(ends, names), on=[first, first, second, second])
    for name, told in zip(names, zip(*by_rank, strict=True), strict=True):
        assert len(set(told)) == 1, f"{name}: {told}"
        assert told[0][1] < 10.0, f"{name} has not learnt: {told}"


def begins(name: str, world: World) -> None:
    Scene(name, model=(3, 1)).trainer(world)


@pytest.mark.parametrize("name", OF_ONE_HOST)
def test_memory_in_common_is_refused_across_hosts(name: str) -> None:
    with hosts(2) as (first, second):
        found = outcomes_real_world(3, partial(begins, name), on=[first, first, second])
    for one in found:
        assert one.error_type is ConfigurationError
        assert f"{name} updates parameters in memory" in one.error_message and "on 2 hosts" in one.error_message
