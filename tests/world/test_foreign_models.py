"""Models that others wrote, in shards on real workers: they are trained as in one process."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.sharding.blocks import blocks_of
from tests.support.foreign_models import FOREIGN, TRANSFORMERS, WRITTEN, batch, parameter
from tests.support.processes import run_real_world
from tests.support.sampled import Few

STEPS, SHARDS = 4, 2
Ended = tuple[dict[str, Tensor], list[Tensor], list[float]]
"""Parameters, buffers at the evaluation, and the losses."""


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def in_shards(name: str, zero: Any, world: Any) -> Ended:
    foreign = FOREIGN[name]
    torch.manual_seed(1 + world.rank)  # they begin with rank 0's
    model: Any = quorate.parallelize(foreign.make(), zero=zero)
    optimizer = quorate.distribute(optimizer_of(model), model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = foreign.loss_of(model, batch(step, world.rank))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with world.evaluate(), torch.no_grad():
        buffers = [x.clone() for x in model.buffers()]
        model.eval()
        losses.append(foreign.loss_of(model, batch(99, 0)).item())
    if foreign.tied is not None:
        one, other = (parameter(model, each) for each in foreign.tied)
        assert one is other
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}, buffers, losses


def all_in_shards(names: Sequence[str], world: Any) -> dict[tuple[str, int], Ended]:
    torch.set_num_threads(1)
    return {(name, zero): in_shards(name, zero, world) for name in names for zero in (3, 2)}


def in_one_process(name: str) -> Ended:
    """Of each step the mean of the workers' losses; statistics of batches are rank 0's, as under `all-reduce`."""
    foreign = FOREIGN[name]
    torch.manual_seed(1)
    model = foreign.make()
    optimizer, losses = optimizer_of(model), []
    for step in range(STEPS):
        optimizer.zero_grad()
        first = foreign.loss_of(model, batch(step, 0))
        (first / SHARDS).backward()
        buffers = [x.clone() for x in model.buffers()]
        (foreign.loss_of(model, batch(step, 1)) / SHARDS).backward()
        for x, before in zip(model.buffers(), buffers, strict=True):
            x.copy_(before)
        optimizer.step()
        losses.append(first.item())
    buffers = [x.clone() for x in model.buffers()]
    model.eval()
    losses.append(foreign.loss_of(model, batch(99, 0)).item())
    return {name: p.detach() for name, p in model.named_parameters()}, buffers, losses


def check(names: Sequence[str]) -> None:
    first, second = run_real_world(SHARDS, partial(all_in_shards, names), 200.0)
    for name in names:
        assert [block for block, _ in blocks_of(FOREIGN[name].make())] == list(FOREIGN[name].blocks)
    for name, zero in first:
        parameters, buffers, losses = in_one_process(name)
        found, theirs, told = first[name, zero]
        assert {each: p.shape for each, p in found.items()} == {each: p.shape for each, p in parameters.items()}
        far = {each: float((found[each] - parameters[each]).abs().max()) for each in found}
        assert max(far.values()) < 2e-6, (name, zero, max(far.items(), key=lambda item: item[1]))
        torch.testing.assert_close(told, losses, rtol=1e-5, atol=1e-5, msg=f"losses of {name} with zero={zero}")
        for mine, other, wanted in zip(theirs, second[name, zero][1], buffers, strict=True):
            assert torch.equal(mine, other), name
            torch.testing.assert_close(mine, wanted)


def test_models_that_others_wrote(few: Few) -> None:
    check(few(list(WRITTEN)))


@pytest.mark.slow
def test_models_of_transformers(few: Few) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed; make test-interop installs it")
    check(few(list(TRANSFORMERS)))


def evaluated(world: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Statistics of batches, of this worker's own and inside an evaluation."""
    torch.set_num_threads(1)
    foreign = WRITTEN["residual"]
    model: Any = quorate.parallelize(foreign.make(), world.mesh(shards=2))
    optimizer = quorate.distribute(optimizer_of(model), model)
    for step in range(2):
        optimizer.zero_grad()
        foreign.loss_of(model, batch(step, world.rank)).backward()
        optimizer.step()
    own = [x.clone() for x in model.buffers()]
    with world.evaluate():
        return own, [x.clone() for x in model.buffers()]


def test_buffers_are_rank_0s_on_all_workers_of_all_replicas() -> None:
    (first, _), *others = found = run_real_world(4, evaluated, 60.0)
    assert not any(all(map(torch.equal, first, own)) for own, _ in others)
    assert all(all(map(torch.equal, first, inside)) for _, inside in found)
