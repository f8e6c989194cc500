"""The start on a device: the bytes that messages carry, and a device without float64."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

import quorate
from tests.gpu.test_waits import GROUPS
from tests.support.counted_waits import Case, counted_steps
from tests.support.every_strategy import NAMES, OF_ONE_HOST, OF_THE_SAME_BATCHES, OWN
from tests.support.gpu_trainings import CLASSES, WIDTH, Run, batch, several
from tests.support.on_gpu import GPU, IS_REAL, needs_gpu, run_on_gpu
from tests.support.payload import payload, tensors_sent
from tests.support.second_device.process_group import LOG, Call, differences

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.slow]


class Start(NamedTuple):
    """`distribute` and the first step of one worker."""

    payload: int
    """Bytes of numbers in messages through sockets."""
    sent: Counter[str]
    """Bytes of tensors in all messages, also in shared memory, by operation."""
    calls: list[Call]
    """Operations of the device's own groups."""
    numbers: torch.Tensor
    """Parameters before and after the step."""


def started(strategy: str, width: int, world: Any) -> Start:
    torch.manual_seed(world.rank)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, width), torch.nn.Linear(width, CLASSES)).to(GPU)
    plain, begin = torch.optim.AdamW(model.parameters()), len(LOG)
    with payload() as bytes_of, tensors_sent() as sent:
        optimizer = quorate.distribute(plain, model, strategy)
        numbers = [p.detach().cpu().flatten() for p in model.parameters()]
        x, y = (part.to(GPU) for part in batch(world.rank, 0))
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    calls = LOG[begin:]
    optimizer.finish()
    numbers += [p.detach().cpu().flatten() for p in model.parameters()]
    return Start(sum(bytes_of.values()), sent, calls, torch.cat(numbers))


def bytes_in(calls: list[Call], operation: str) -> int:
    """The bytes of all tensors in the calls of an operation."""
    tensors = [
        re.findall(r"torch\.(\w+) \((.*?)\)", call.operation) for call in calls if call.operation.startswith(operation)
    ]
    sizes = {dtype: getattr(torch, dtype).itemsize for every in tensors for dtype, _ in every}
    return sum(
        sizes[dtype] * math.prod(map(int, re.findall(r"\d+", shape))) for every in tensors for dtype, shape in every
    )


@pytest.mark.parametrize("gpus", ["nccl", "host"])
def test_no_numbers_of_a_model_are_in_messages(gpus: str) -> None:
    starts = run_on_gpu(4, partial(started, "all-reduce", 2000), gpus=gpus)
    assert [start.payload for start in starts] == [0] * 4


@pytest.mark.skipif(IS_REAL, reason="calls are noted by the groups of the second device")
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd", "quorum"])
def test_a_start_is_the_work_of_the_groups_of_the_device(strategy: str) -> None:
    """They broadcast the model, and form the first sums. Messages, by whichever way, do not grow with it."""
    small, large = (run_on_gpu(4, partial(started, strategy, width), gpus="nccl") for width in (20, 2000))
    count = WIDTH * 2000 + 2000 + 2000 * CLASSES + CLASSES
    for start in large:
        assert torch.equal(start.numbers[:count], large[0].numbers[:count]), "all begin with the model of rank 0"
        assert bytes_in(start.calls, "broadcast_") >= 4 * count
        assert strategy != "all-reduce" or bytes_in(start.calls, "allreduce_") >= 4 * count
    assert differences([start.calls for start in large]) == []
    if strategy != "quorum":  # whose rounds are formed on the hosts
        assert [start.sent for start in small] == [start.sent for start in large]
        assert all(torch.equal(start.numbers, large[0].numbers) for start in large)


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
