"""The start on a device: the bytes that messages carry, and a device without float64."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch

import quorate
from tests.gpu.test_waits import GROUPS
from tests.support.counted_waits import Case, counted_steps
from tests.support.every_strategy import NAMES, OF_ONE_HOST, OF_THE_SAME_BATCHES, OWN
from tests.support.gpu_trainings import CLASSES, WIDTH, Run, batch, several
from tests.support.on_gpu import GPU, IS_REAL, needs_gpu, run_on_gpu
from tests.support.payload import payload

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.slow]


def started(world: Any) -> int:
    """The bytes of numbers in the messages of `distribute` and the first step."""
    torch.manual_seed(world.rank)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 2000), torch.nn.Linear(2000, CLASSES)).to(GPU)
    plain = torch.optim.AdamW(model.parameters())
    with payload() as bytes_of:
        optimizer = quorate.distribute(plain, model)
        x, y = (part.to(GPU) for part in batch(world.rank, 0))
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.finish()
    return sum(bytes_of.values())


@pytest.mark.parametrize("gpus", ["nccl", "host"])
def test_no_numbers_of_a_model_are_in_messages(gpus: str) -> None:
    assert run_on_gpu(4, started, gpus=gpus) == [0] * 4


def without_float64(runs: list[Run], world: Any) -> list[tuple[list[float], list[torch.Tensor]]]:
    os.environ["SIM_FLOAT64"] = "refused"
    with pytest.raises(RuntimeError, match="no float64"):
        torch.zeros(1, dtype=torch.float64, device=GPU)
    return several(runs, GPU.type, world)


@pytest.mark.skipif(IS_REAL, reason="a CUDA device has float64")
@pytest.mark.parametrize("strategy", [name for name in NAMES if name not in (*OF_ONE_HOST, *OF_THE_SAME_BATCHES, *OWN)])
def test_strategies_on_a_device_without_float64(strategy: str) -> None:
    run_on_gpu(2, partial(without_float64, [Run(strategy, steps=4, adamw=strategy != "dana", clips=True)]))


def divided_without_float64(cases: list[Case], world: Any) -> None:
    os.environ["SIM_FLOAT64"] = "refused"
    for case in cases:
        counted_steps(case, 2, world)


DIVIDED = ("shards", "tensor", "stages", "several axes", "replicas in shards", "outer steps", "local steps")


@pytest.mark.skipif(IS_REAL, reason="a CUDA device has float64")
@pytest.mark.parametrize("group", DIVIDED)
def test_models_in_pieces_and_local_steps_on_a_device_without_float64(group: str) -> None:
    cases = [case for case, _ in GROUPS[group]]
    run_on_gpu(cases[0].size, partial(divided_without_float64, cases), gpus=cases[0].gpus)
